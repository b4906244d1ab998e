"""The base class of stages, which change logits between model and search: penalties, constraints, users' functions;
which lines of a step they are asked about, and what a limit leaves room for.

A step has a line for each row, or several for each row if it reads drafts beside the newest token. Example: rows 0 and
1 with 3 places each are six lines, of rows 0, 0, 0, 1, 1 and 1; a table has a line for each row.

Example of room: the text so far is `{"total": `, and 3 tokens are left, one of them for the end. From all tokens that
the type allows, `5` is drawn; `}` fits after it, so it stays. Next `.` is drawn, after which two more tokens would be
needed: it does not fit. So another token is drawn with the same key from those that fit, and only `}` does. The text is
squeezed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gen.requests.processors import LogitsProcessor
from gen.requests.request import Request
from gen.stages.ahead import Ahead

Fits = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Places:
    """Several places of each of some rows.

    Attributes:
        rows: which rows.
        width: how many places each row has.
        index: (n * width,), int64: the row of each place, on the device.
    """

    rows: slice
    width: int
    index: Tensor


Here = slice | Places


def lines(table: Tensor, here: Here) -> Tensor:
    """The lines (n, ...) of a table that has one for each row: views for rows, copies for places. Host sync: none."""
    return table[here] if isinstance(here, slice) else table.index_select(0, here.index)


@dataclass(frozen=True)
class Room:
    """What a search needs to know in a step in which texts may be short of room.

    Attributes:
        narrow: (wanted (n,) bool or None for all) -> (n, vocab): the logits of the step, but -inf for tokens that may
            not fit; perhaps in the memory of the step's logits. The logits of rows that are not wanted mean nothing.
        squeezed: (n,) bool, which the search sets: whether the limit has changed the row's token.
        fits_after: (tokens (m,), rows (m,) or None if each token is of its own row) -> (m,) bool; None without limits.
    """

    narrow: Callable[[Tensor | None], Tensor]
    squeezed: Tensor
    fits_after: Fits | None = None

    def fits(self, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """Whether each token leaves enough room for an end, after the text of its row.

        Args:
            token_ids: any shape, int64; (n, ...) without rows.
            rows: indices into the step's rows, of the same shape; None if each token comes after its own row.
        Returns:
            bool, of the shape of token_ids. Host sync: none.
        """
        if self.fits_after is None:
            return torch.ones_like(token_ids, dtype=torch.bool)
        return self.fits_after(token_ids.view(-1), None if rows is None else rows.view(-1)).view_as(token_ids)

    def took(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (n, vocab) without tokens that may not fit, and whether a row has lost a token, (n,) bool.

        Host sync: none.
        """
        before = logits.isneginf()
        narrowed = self.narrow(None)
        return narrowed, (before != narrowed.isneginf()).any(1)


class Stage(ABC):
    """Changes the logits between the model and the search. State is changed in place.

    A stage that goes ahead of texts has a state before each place of a step, and drafts of its own.

    Attributes:
        failing: the `logits_processors` of a request that were running when a step failed; else empty.
        looks_back: whether it looks at the tokens so far; if no stage does, `history` and `lengths` mean nothing.
        takes_places: whether it can be asked about several places of each row at once.
        goes_ahead: whether it goes ahead of texts.
        forces: whether it drafts tokens that must come; set before rows are admitted.
        replayable: whether a step may be repeated without its Python code, with what its rows ask for now.
        anew: whether its functions run at every step, whatever else is repeated.
    """

    failing: Sequence[LogitsProcessor] = ()
    looks_back: bool = False
    takes_places: bool = False
    goes_ahead: bool = False
    forces: bool = False

    @property
    def replayable(self) -> bool:
        return True

    @property
    def anew(self) -> bool:
        return False

    @abstractmethod
    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""

    @abstractmethod
    def key(self) -> Hashable:
        """What a recorded step depends on; None if the stage does nothing."""

    @abstractmethod
    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        """Rows, side by side, begin with the texts of these requests; `tokens` as for `Decoder.fill`."""

    @abstractmethod
    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """The logits (n, vocab) of the rows `here`, changed, in place or not; of places, if the stage takes places.

        Args:
            history: (n, columns), int64: the tokens so far, prompt and text; -1 where there is none.
            lengths: (n, 1), int64: how many they are.
            generated: (n, 1), int64: how many of them are new.
        """

    @abstractmethod
    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""

    def prepare(self, here: slice, width: int = 1) -> None:
        """The rows `here` are about to choose, each at `width` places. On a CPU the host may read what their last step
        left, and write in place what this step reads: this is no part of recorded steps."""
        return  # nothing, by default

    def advance(
        self,
        here: slice,
        newest: Tensor,
        ancestors: Tensor | None = None,
        counts: Tensor | None = None,
        made: Tensor | None = None,
    ) -> None:
        """The rows `here` go on; this is a part of the step.

        Args:
            newest: (n, 1), int64: the last token that each row goes on with.
            ancestors: (n,), int64: indices into `here`, from which each row goes on; None if each does from itself.
            counts: (n, 1), int64: how many tokens rows go on with, of which all but the last are its drafts; None if
                nothing was drafted.
            made: (n, places), int64, given with counts: how many tokens each row had before each place.
        """
        return  # nothing, by default

    def move(self, source: int, target: int) -> None:
        """One row becomes a copy of another one; the loop moves its tensors."""
        return  # nothing, by default

    def memory(self) -> int:
        """How many bytes those of its tensors have that belong to no row."""
        return 0

    def retain_only(self, rows: Collection[int], requests: Collection[Request]) -> None:
        """Only these rows, of these requests, go on: functions of other requests are no longer run."""
        return  # nothing, by default

    def write(self, changed: Tensor, *given: object) -> None:
        """As a call, but the changed logits are written to `changed`, (n, vocab) float32."""
        changed.copy_(self(*given))  # type: ignore[arg-type]

    def ahead(self, row: int, drafts: int) -> Ahead | None:
        """On a CPU: what goes ahead of the text of a row, which the next step may then ask about at this many more
        places; None if the text has no constraint."""
        return None

    def draft(
        self, here: slice, feed: Tensor, real: Tensor, generated: Tensor, *, walks: bool
    ) -> tuple[Tensor, Tensor]:
        """On other devices: a stage that goes ahead follows the drafts of the rows `here` from their states.

        Args:
            feed: (n, 1 + drafts), int64: the newest token and drafts; forced tokens replace drafts.
            real: (n, 1), int64: how many of the drafts count; the others only fill the tensor.
            generated: (n, 1), int64: how many tokens each row has, the newest included.
            walks: whether any draft may count; if not, only forced tokens do.
        Returns:
            (n, 1), int64: how many drafts count now, and may come; (n, drafts), bool: which of them are forced.
            Host sync: none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not go ahead")

    def room(self, masked: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room | None:
        """What the limits of the rows `here` leave room for, in a step in which some rows may be short of room; None
        for a stage without limits. Only the last of the stages has any.

        This is a part of the step, after `__call__`.

        Args:
            masked: (n, vocab), the result of `__call__`; `Room.narrow` may change it.
            generated: as for `__call__`.
            squeezed: (n,) bool, for the search to set.
        """
        return None
