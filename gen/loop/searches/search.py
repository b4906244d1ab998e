"""What chooses the next token of each row: one interface for draws, beams and samplers that are not gen's own."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from gen.loop.results.ring import Packed
from gen.requests.request import Request
from gen.stages.places import Here
from gen.stages.room import Room


class Search(Protocol):
    """Chooses a token for each row and keeps what it must of the rows, on the logits device, in place.

    Attributes:
        reorders: whether a row may go on from another one of its request.
        results: tensors (count, ...) that the host gets of every step; the first is the token ids (count, 1), the
            second the log-probabilities or weights (count,).
        draws: whether it needs keys; a part of `key`.
    """

    @property
    def reorders(self) -> bool: ...
    @property
    def results(self) -> Packed: ...
    @property
    def draws(self) -> bool: ...

    def begin(self) -> None:
        """All rows are free: what earlier requests asked for no longer counts."""

    def key(self) -> Hashable:
        """What a recorded step depends on: equal keys, same calls on the same tensors."""

    def warm_up(self, logits: Sequence[Tensor], requests: Sequence[Request]) -> None:
        """Compile what `choose` will need once these requests are admitted, before their prompts are read.

        Args:
            logits: (1, vocab) each, on the meta device: of the dtypes and strides that those to come may have.
        """

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        """Rows, side by side, begin with these requests' texts, whose tokens so far have these log-probabilities."""

    def choose(
        self, logits: Tensor, here: slice, keys: Tensor | None, generated: Tensor, room: Room | None = None
    ) -> Tensor | None:
        """Choose a token for the rows `here`, write the results, and say where each goes on from.

        Args:
            logits: (n, vocab), floating.
            keys: (n,), int64: each row's random key; None where it needs none.
            generated: (n, 1), int64: how many tokens each row has.
            room: where texts may be short of it: what the limits leave, and where to say which texts they changed.
        Returns:
            (n,), int64: indices into `here`; None where each row goes on from itself. Host sync: none on CUDA.
        """

    def tensors(self) -> Iterable[Tensor]:
        """All that belongs to rows, rows first."""


@runtime_checkable
class Picks(Search, Protocol):
    """A search whose rows are independent, and may choose at several places at once before it is known which count."""

    def pick(self, logits: Tensor, here: Here, keys: Tensor | None, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """A token for each row or place, (n, 1) int64, and its log-probability, (n,); nothing is written.

        Args: as for `choose`. Host sync: none on CUDA.
        """

    def go_on(self, here: slice, token_ids: Tensor) -> None:
        """The rows `here` go on from these tokens (n, 1)."""
