"""The base class of searches, which choose the next token of each row: draws, beams and samplers of users."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from gen.loop.results.ring import Packed
from gen.requests.request import Request
from gen.stages.stage import Here, Room


class Given(NamedTuple):
    """What a search chooses from, in rows or at places `here`.

    Attributes:
        logits: (n, vocab), floating; log-probabilities if stages have changed them and the search `scores`.
        keys: (n,), int64: each row's random key; None if the search needs none.
        generated: (n, 1), int64: how many tokens each row has.
        room: given if texts may be short of room: what the limits leave, and where to write which texts the limits have
            changed.
        staged: whether stages have changed the logits.
    """

    logits: Tensor
    here: Here
    keys: Tensor | None
    generated: Tensor
    room: Room | None = None
    staged: bool = False


class Search(ABC):
    """Chooses a token for each row, and keeps its state of the rows on the logits device, where it changes in place.

    Attributes:
        results: tensors (count, ...) that the host gets after every step; the first is the token ids (count, 1), the
            second the log-probabilities or weights (count,).
        reorders: whether a row may go on from another row of its request.
        draws: whether it needs random keys; a part of `key`.
        scores: whether stages change log-probabilities instead of logits, and it takes what they make as it is.
        picks: whether rows are independent: then it may choose at several places of a row at once, before it is known
            which of them count.
    """

    results: Packed
    reorders: bool = False
    draws: bool = False
    scores: bool = False
    picks: bool = False

    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""
        return  # nothing, by default

    def key(self) -> Hashable:
        """What a recorded step depends on: with equal keys, steps make the same calls on the same tensors. None if the
        search may change the logits in place."""
        return None

    @abstractmethod
    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        """Rows, side by side, begin with the texts of these requests; `weights` are the log-probabilities so far."""

    @abstractmethod
    def choose(self, given: Given) -> Tensor | None:
        """Choose a token for each row, write the results, and say where each goes on from.

        Returns:
            (n,), int64: indices into the rows; None if each goes on from itself. Host sync: none on CUDA.
        """

    def pick(self, given: Given) -> tuple[Tensor, Tensor]:
        """A token for each row or place, (n, 1) int64, and its log-probability, (n,); nothing is written. Host sync:
        none on CUDA."""
        raise NotImplementedError(f"{type(self).__name__} chooses whole steps")

    def temperatures(self, here: Here) -> Tensor | float:
        """The temperature of each row or place, (n, 1); 1 where the most likely token is taken."""
        return 1.0

    @abstractmethod
    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""
