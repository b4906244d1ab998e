"""The interface of searches, which choose the next token of each row: draws, beams and samplers of users."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from gen.loop.results.ring import Packed
from gen.requests.request import Request
from gen.stages.places import Here
from gen.stages.room import Room


class Search(Protocol):
    """Chooses a token for each row, and keeps its state of the rows on the logits device, where it changes in place.

    Attributes:
        reorders: whether a row may go on from another row of its request.
        results: tensors (count, ...) that the host gets after every step; the first is the token ids (count, 1), the
            second the log-probabilities or weights (count,).
        draws: whether it needs random keys; a part of `key`.
        scores: whether stages change log-probabilities instead of logits, and it takes what they make as it is.
    """

    scores: bool

    @property
    def reorders(self) -> bool: ...
    @property
    def results(self) -> Packed: ...
    @property
    def draws(self) -> bool: ...

    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""

    def key(self) -> Hashable:
        """What a recorded step depends on: with equal keys, steps make the same calls on the same tensors."""

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        """Rows, side by side, begin with the texts of these requests; `weights` are the log-probabilities so far."""

    def choose(
        self,
        logits: Tensor,
        here: slice,
        keys: Tensor | None,
        generated: Tensor,
        room: Room | None = None,
        *,
        staged: bool = False,
    ) -> Tensor | None:
        """Choose a token for the rows `here`, write the results, and say where each goes on from.

        Args:
            logits: (n, vocab), floating.
            staged: whether stages have changed them; if it `scores`, they are log-probabilities then.
            keys: (n,), int64: each row's random key; None if the search needs none.
            generated: (n, 1), int64: how many tokens each row has.
            room: given if texts may be short of room: what the limits leave, and where to write which texts the limits
                have changed.
        Returns:
            (n,), int64: indices into `here`; None if each row goes on from itself. Host sync: none on CUDA.
        """

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""


@runtime_checkable
class Picks(Search, Protocol):
    """A search whose rows are independent: it may choose at several places of a row at once, before it is known which
    of them count.
    """

    def pick(self, logits: Tensor, here: Here, keys: Tensor | None, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """A token for each row or place, (n, 1) int64, and its log-probability, (n,); nothing is written.

        Args: as for `choose`. Host sync: none on CUDA.
        """

    def temperatures(self, here: Here) -> Tensor:
        """The temperature of each row or place, (n, 1); 1 where the most likely token is taken."""
