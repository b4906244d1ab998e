"""How a call's requests are run."""

from dataclasses import dataclass

from gen.arguments import check_flag, read_whole
from gen.loop.speculation.settings import Speculate, read_speculate

WHOLE = 4096  # tokens of prompts that are read at once if no row waits
BESIDE_STEPS = {"cpu": 32, "cuda": 512}  # between two steps of rows that wait meanwhile


@dataclass(frozen=True, kw_only=True)
class Options:
    """How requests are run; the texts are the same with any options.

    Attributes:
        step_rows: a power of two: the number of searches in a step is a multiple of it. It is above 1 if a row must
            get the same bits in any batch.
        replay: whether steps are recorded on a CPU where that is possible.
        cuda_graph: whether steps are captured on CUDA where that is possible.
        max_batch_tokens: how many tokens rows may have room for together; None for what fits into free memory.
        rows: how many rows there may be; None for the device's usual number.
        fixed: whether the number of rows does not depend on free memory: it is `rows`, or as many as the requests need,
            and if memory does not hold them, nothing more runs. Nothing measured decides how requests run, no free
            memory and no clock, and nothing that ran before, as rows that have grown: equal requests get equal bits.
        keeps: whether finished texts are kept for later prompts, see `gen.loop.prefixes.tree`.
        admit_tokens: how many tokens of prompts may be read between two steps of the running rows; None for so few that
            these wait as short as possible, `BESIDE_STEPS`.
        speculate: see `gen.generate`.
    Raises:
        ArgumentError: one of those that a caller gives cannot be used.
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

    def __post_init__(self) -> None:
        for name in ("replay", "cuda_graph"):
            check_flag(name, getattr(self, name))
        for name in ("max_batch_tokens", "admit_tokens"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_whole(name, given, minimum=1))
        read_speculate(self.speculate)
