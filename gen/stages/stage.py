"""What changes logits between the model and the search: one interface for penalties, constraints, users' functions."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from gen.requests.processors import LogitsProcessor
from gen.requests.request import Request
from gen.stages.ahead import Ahead
from gen.stages.places import Here
from gen.stages.room import Room


class Stage(Protocol):
    """Changes the logits between the model and the search. State is changed in place.

    Attributes:
        failing: the `logits_processors` of a request that were being run when a step failed; else empty.
        looks_back: whether it looks at the tokens so far: `history` and `lengths` say nothing where no stage does.
    """

    failing: Sequence[LogitsProcessor]

    @property
    def looks_back(self) -> bool: ...

    def begin(self) -> None:
        """All rows are free: what earlier requests asked for no longer counts."""

    def key(self) -> Hashable:
        """What a recorded step depends on; None where it does nothing."""

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        """Rows, side by side, begin with these requests' texts; `tokens` as of `RowSet.fill`."""

    def __call__(self, logits: Tensor, here: slice, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """The logits (n, vocab) of the rows `here`, changed, in place or not.

        Args:
            history: (n, columns), int64: the tokens so far, prompt and text; -1 where there is none.
            lengths: (n, 1), int64: how many they are.
            generated: (n, 1), int64: how many of them are new.
        """

    def tensors(self) -> Iterable[Tensor]:
        """All that belongs to rows, rows first."""


@runtime_checkable
class RunsFunctions(Stage, Protocol):
    """A stage that runs functions of the requests', for as long as one of these requests goes on.

    Attributes:
        anew: whether they run at every step, and are in no recording.
    """

    @property
    def anew(self) -> bool: ...

    def write(
        self, changed: Tensor, logits: Tensor, here: slice, history: Tensor, lengths: Tensor, generated: Tensor
    ) -> None:
        """As a call, but the changed logits are written to `changed`, (n, vocab) float32."""

    def keep(self, rows: Collection[int], requests: Collection[Request]) -> None:
        """Only these rows, of these requests, go on: what others asked for is not done any more."""


@runtime_checkable
class Follower(Stage, Protocol):
    """A stage that keeps a state of each text, and is told how each goes on.

    Attributes:
        replayable: whether steps may be recorded with what its rows ask for now.
    """

    @property
    def replayable(self) -> bool: ...

    def prepare(self, here: slice) -> None:
        """The rows `here` are about to choose. On a CPU the host may read what their last step left, and write in place
        what this one reads: recorded steps do not have this in them."""

    def chosen(self, here: slice, token_ids: Tensor, ancestors: Tensor | None) -> None:
        """The rows `here` have chosen: a part of the step.

        Args:
            token_ids: (n, 1), int64.
            ancestors: (n,), int64: indices into `here`, from which each row has gone on; None for each from itself.
        """

    def move(self, source: int, target: int) -> None:
        """One row becomes a copy of another one; the loop moves its tensors."""

    def memory(self) -> int:
        """How many bytes its tensors have that belong to no row."""


@runtime_checkable
class PlacesStage(Stage, Protocol):
    """A stage that can be asked about several places of each row at once.

    Attributes:
        takes_places: whether it can.
    """

    @property
    def takes_places(self) -> bool: ...

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """As of `Stage`, each place after its own tokens."""


@runtime_checkable
class Drafter(Follower, PlacesStage, Protocol):
    """A follower that goes ahead of its texts: it has a state before each place of a step, and drafts of its own.

    Attributes:
        forces: whether it drafts what must come; set before rows are admitted.
    """

    forces: bool

    def ahead(self, row: int, drafts: int) -> Ahead | None:
        """On a CPU: goes ahead of the text of a row, which the next step may then ask about at this many more places;
        None where it is held to no type."""

    def draft(self, here: slice, feed: Tensor, real: Tensor, *, walks: bool) -> tuple[Tensor, Tensor]:
        """Elsewhere: follow the drafts of the rows `here` from where they are.

        Args:
            feed: (n, 1 + drafts), int64: the newest token and drafts, which are changed to what is forced.
            real: (n, 1), int64: how many of the drafts count; what comes after them is filling.
            walks: whether any does.
        Returns:
            (n, 1), int64: how many of them count now, and may come; (n, drafts), bool: which are forced.
            Host sync: none.
        """

    def prepare_places(self, here: slice, width: int) -> None:
        """As `prepare`, before a step that asks about this many places of each row."""

    def go_on(self, here: slice, token_ids: Tensor, counts: Tensor, generated: Tensor) -> None:
        """Rows go on by their first drafts, and by a token after them.

        Args:
            token_ids: (n, 1), int64: the last one.
            counts: (n, 1), int64: how many tokens, the last one among them.
            generated: (n, 1), int64: how many tokens each row has had before the last one.
        """


@runtime_checkable
class Limiter(Follower, Protocol):
    """A follower that keeps texts within their limits; the last of the stages."""

    def room(self, masked: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room:
        """What the limits of the rows `here` leave room for, in a step in which some may be short of it: a part of the
        step, after `__call__`.

        Args:
            masked: (n, vocab), what `__call__` gave; `Room.narrow` may change it.
            generated: as of `__call__`.
            squeezed: (n,) bool, for the search to set.
        """
