"""The interface of stages, which change logits between model and search: penalties, constraints, users' functions."""

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
        failing: the `logits_processors` of a request that were running when a step failed; else empty.
        looks_back: whether it looks at the tokens so far; if no stage does, `history` and `lengths` mean nothing.
    """

    failing: Sequence[LogitsProcessor]

    @property
    def looks_back(self) -> bool: ...

    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""

    def key(self) -> Hashable:
        """What a recorded step depends on; None if the stage does nothing."""

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        """Rows, side by side, begin with the texts of these requests; `tokens` as for `Decoder.fill`."""

    def __call__(self, logits: Tensor, here: slice, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """The logits (n, vocab) of the rows `here`, changed, in place or not.

        Args:
            history: (n, columns), int64: the tokens so far, prompt and text; -1 where there is none.
            lengths: (n, 1), int64: how many they are.
            generated: (n, 1), int64: how many of them are new.
        """

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""


@runtime_checkable
class RunsFunctions(Stage, Protocol):
    """A stage that runs functions of requests, for as long as one of these requests goes on.

    Attributes:
        anew: whether the functions run at every step, and are in no recording.
    """

    @property
    def anew(self) -> bool: ...

    def write(
        self, changed: Tensor, logits: Tensor, here: slice, history: Tensor, lengths: Tensor, generated: Tensor
    ) -> None:
        """As a call, but the changed logits are written to `changed`, (n, vocab) float32."""

    def keep(self, rows: Collection[int], requests: Collection[Request]) -> None:
        """Only these rows, of these requests, go on: functions of other requests are no longer run."""


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
        what this step reads: this is no part of recorded steps."""

    def chosen(self, here: slice, token_ids: Tensor, ancestors: Tensor | None) -> None:
        """The rows `here` have chosen these tokens; this is a part of the step.

        Args:
            token_ids: (n, 1), int64.
            ancestors: (n,), int64: indices into `here`, from which each row has gone on; None if each goes on from
                itself.
        """

    def move(self, source: int, target: int) -> None:
        """One row becomes a copy of another one; the loop moves its tensors."""

    def memory(self) -> int:
        """How many bytes those of its tensors have that belong to no row."""


@runtime_checkable
class PlacesStage(Stage, Protocol):
    """A stage that can be asked about several places of each row at once.

    Attributes:
        takes_places: whether it can.
    """

    @property
    def takes_places(self) -> bool: ...

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """As for `Stage`; each place comes after its own tokens."""


@runtime_checkable
class Drafter(Follower, PlacesStage, Protocol):
    """A follower that goes ahead of its texts: it has a state before each place of a step, and drafts of its own.

    Attributes:
        forces: whether it drafts tokens that must come; set before rows are admitted.
    """

    forces: bool

    def ahead(self, row: int, drafts: int) -> Ahead | None:
        """On a CPU: what goes ahead of the text of a row, which the next step may then ask about at this many more
        places; None if the text has no constraint."""

    def draft(
        self, here: slice, feed: Tensor, real: Tensor, generated: Tensor, *, walks: bool
    ) -> tuple[Tensor, Tensor]:
        """On other devices: follow the drafts of the rows `here` from their states.

        Args:
            feed: (n, 1 + drafts), int64: the newest token and drafts; forced tokens replace drafts.
            real: (n, 1), int64: how many of the drafts count; the others only fill the tensor.
            generated: (n, 1), int64: how many tokens each row has, the newest included.
            walks: whether any draft may count; if not, only forced tokens do.
        Returns:
            (n, 1), int64: how many drafts count now, and may come; (n, drafts), bool: which of them are forced.
            Host sync: none.
        """

    def prepare_places(self, here: slice, width: int) -> None:
        """As `prepare`, before a step that asks about this many places of each row."""

    def go_on(self, here: slice, token_ids: Tensor, counts: Tensor, generated: Tensor) -> None:
        """Rows go on with their first drafts, and with a last token after them.

        Args:
            token_ids: (n, 1), int64: the last token.
            counts: (n, 1), int64: how many tokens rows go on with, the last one included.
            generated: (n, 1), int64: how many tokens each row has before the last one.
        """


@runtime_checkable
class Limiter(Follower, Protocol):
    """A follower that keeps texts within their limits; the last of the stages."""

    def room(self, masked: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room:
        """What the limits of the rows `here` leave room for, in a step in which some rows may be short of room.

        This is a part of the step, after `__call__`.

        Args:
            masked: (n, vocab), the result of `__call__`; `Room.narrow` may change it.
            generated: as for `__call__`.
            squeezed: (n,) bool, for the search to set.
        """
