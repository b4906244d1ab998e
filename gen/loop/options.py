"""How a call's requests are run."""

from dataclasses import dataclass

from gen.loop.pace import WHOLE
from gen.loop.speculation.settings import Speculate


@dataclass(frozen=True, kw_only=True)
class Options:
    """How requests are run; the texts are the same with any options.

    Attributes:
        step_rows: steps have whole multiples of so many searches, so that a row gets the same bits in any batch; a
            power of two, above 1 where that is asked for.
        replay: whether steps are recorded on a CPU where they can be.
        cuda_graph: whether steps are captured on CUDA where they can be.
        max_batch_tokens: how many tokens rows may have room for together; None for what fits into free memory.
        rows: how many rows at most; None for the device's usual number.
        fixed: whether there are as many rows as that, or as the requests need, whatever memory holds; where it does not
            hold them nothing more runs. So the rows that run together do not depend on what else takes memory, nor what
            a step reads on a clock.
        keeps: whether texts that are over are kept for later prompts, see `gen.loop.prefixes.tree`.
        admit_tokens: how many tokens of prompts are read at most between two steps of the rows that go on; None for
            as many as are read in the time of a step.
        speculate: see `gen.generate`.
    """

    step_rows: int = 1
    replay: bool = True
    cuda_graph: bool = True
    max_batch_tokens: int | None = None
    rows: int | None = None
    fixed: bool = False
    keeps: bool = False
    admit_tokens: int | None = WHOLE
    speculate: Speculate = "auto"
