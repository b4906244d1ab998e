"""What a model adapter offers to the decode loop; a new model format is one class that meets this."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gen.devices import Placement
from gen.samplers.base import Sampler
from gen.tokenizers import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Inputs = Mapping[str, Tensor]
"""What a prompt's images are to the model, on the CPU; empty without images."""


class NoRoom(Exception):
    """The rows would need more memory than they may have: fewer of them must do."""


class Rows(Protocol):
    """The sequences of a batch: cache, positions and masks, each row with a place of its own.

    State is changed in place; the host knows how long each row is, and a step reads nothing from the device.

    Attributes:
        count: how many rows there are.
        length: how many tokens a row has room for, the prompt's among them.
        refillable: whether a row can be filled while others go on; else all are filled once, at the start.
        replayable: whether a step has fixed addresses, and shapes that depend on (rows, view) alone: then it may be
            recorded, or captured as a CUDA graph.
        whole_prompts: whether a prompt must be read in one piece.
    """

    @property
    def count(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def refillable(self) -> bool: ...
    @property
    def replayable(self) -> bool: ...
    @property
    def whole_prompts(self) -> bool: ...

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        """Read prompts into rows, and drop what was in these; the other rows stay as they are.

        Args:
            rows: one for each prompt, in order.
            prompts: token ids, at least one each.
            start: how many tokens of each prompt have been read into these rows before; these come after them.
            inputs: what goes with each prompt's images; nothing where no prompt has any.
        Returns:
            The logits (n, vocab_size) after each prompt, floating, on the logits device. Host sync: none for texts.
        """

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """Append one token to each of the first n rows and give the logits after it.

        Args:
            token_ids: (n, 1), int64, on the logits device; the adapter moves them where the embedding is.
            view: how many columns are looked at, more than any row of those that count has tokens.
        Returns:
            (n, vocab_size), floating, on the logits device. Host sync: none. A row that is past the end of its text
            may give anything, but does not fail.
        """

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """Make row i continue what row ancestors[i] was, in place.

        Args:
            ancestors: (n,), int64, on the logits device: for the first n rows.
            view: how many columns count.
        """

    def copy(self, source: int, targets: slice, view: int) -> None:
        """Make rows equal to another one, whose first `view` columns count."""

    def parts(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """All that it keeps: what it is, the tensor, and the device where it belongs."""

    def moving(self) -> Iterable[Tensor]:
        """What a step changes so that running it twice would not be running it once: counts, recurrent states."""

    def grow(self, length: int) -> None:
        """Make room for `length` tokens a row: the only call that moves memory."""


@runtime_checkable
class ReadsPlaces(Protocol):
    """Rows that go on from columns of their own, and give logits after any of the tokens that they read.

    Attributes:
        reads_places: whether they do; recurrent states stand for all tokens of a row, and cannot go on from some.
    """

    @property
    def reads_places(self) -> bool: ...

    def read(
        self, rows: slice, pieces: Sequence[Sequence[int]], starts: Sequence[int], places: Sequence[int]
    ) -> Tensor:
        """Read tokens into rows; a row's tokens from its start on are gone.

        Args:
            rows: one for each piece, in order.
            pieces: token ids, at least one each.
            starts: after how many tokens of its row each piece comes; a row has room for as many more as the longest
                piece has.
            places: after which tokens of the pieces, counted from 0, logits are wanted; at least one, ascending.
        Returns:
            (n, len(places), vocab_size), floating, on the logits device; anything for places past a piece's end. Host
            sync: none.
        """


@runtime_checkable
class SharesColumns(Protocol):
    """Rows that may look at the same memory."""

    def share(self, source: int, targets: slice, columns: int) -> None:
        """As `Rows.copy`, of columns that the source changes no more."""


@runtime_checkable
class SavesColumns(Protocol):
    """Rows whose columns can be copied out, and into other rows of the model, which then go on from them."""

    def save(self, row: int, start: int, end: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's columns from one token on to another one.

        Returns:
            By name tensors (..., tokens, width) on the devices where they belong. Host sync: none.
        """

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """Put columns that `save` gave, or some of them, into a row, from the column `start` on. Host sync: none."""


@runtime_checkable
class SavesStates(SavesColumns, Protocol):
    """Rows that may have recurrent states, which stand for all tokens of a row: a row goes on from them at one place.

    Attributes:
        recurrent: whether they have; then a row goes on only where its states were put into it with its columns.
    """

    @property
    def recurrent(self) -> bool: ...
    def save_states(self, row: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's states, by name, on the devices where they belong. Host sync: none."""

    def load_states(self, row: int, states: Mapping[Hashable, Tensor]) -> None:
        """Put states that `save_states` gave into a row. Host sync: none."""

    def going_on_costs(self) -> int:
        """How many tokens of a prompt are read from its beginning in the time of one that is read after states: 1, or
        many where such tokens are read one by one. Host sync: several, once for a model.
        """


class Model(Protocol):
    """A language model that knows where its parts are.

    Attributes:
        placement: recorded at init; never asked for again.
        tokenizer: its ids are below vocab_size.
        vocab_size: the width of the logits, which may be more than the tokenizer's ids.
        context_length: how many tokens a sequence may have, prompt and new ones; sys.maxsize where there is no limit.
        eos_token_ids: the ids that end a text; may be empty.
    """

    @property
    def placement(self) -> Placement: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    def new_rows(self, count: int, length: int) -> Rows:
        """Room for `count` sequences of `length` tokens; more tokens come with `Rows.grow`."""


@runtime_checkable
class ImageReader(Model, Protocol):
    """A model whose prompts may have images; its rows take what `encode` gives."""

    def encode(
        self, text: str, images: Sequence["Image"], *, add_special_tokens: bool = True
    ) -> tuple[list[int], Inputs]:
        """The token ids of a prompt with as many places for images as there are images, and what goes with them.

        Raises:
            ArgumentError: the text has another number of places, or the images cannot be used.
        """


@runtime_checkable
class Checked(Protocol):
    """A model that can change after it was taken."""

    def check(self) -> object:
        """What recorded steps rest on: which tensors and modules there are, and whatever else its forward reads that is
        no number in their memory; None where that is not known. Called when requests are read, and once for all that
        join the rows in a turn.

        Compared with `==`, also after what it names may be gone: hold it, since an id is used again.

        Raises:
            ModelError: it can no longer be run as it was taken.
        """


@runtime_checkable
class Versioned(Protocol):
    """A model that is `Checked`, and whose keys and values may be kept from call to call."""

    def version(self, checked: Any) -> object:
        """How often the numbers in the tensors that `check` has found have been changed by now, as far as torch counts
        it. With what `check` has given, it is what columns that were read rest on. Compared with `==`.

        Args:
            checked: what `check` has given, which is not None.
        """


@runtime_checkable
class LooksByRow(Protocol):
    """Rows that look at each row's own columns, where the host tells how many those are."""

    def look_at(self, lengths: Sequence[int]) -> None:
        """How many columns each row of the next step has, its new token counted; 0 for a free row.

        With no lengths all rows look at all columns of a step again, as before the first call.
        """


@runtime_checkable
class WideRows(Protocol):
    """Rows that take several tokens in a step, and can go back: those that turn out wrong leave nothing behind.

    Attributes:
        widest: how many tokens a row takes in a step at most; 1 where these rows cannot do it after all.
    """

    @property
    def widest(self) -> int: ...

    def step_wide(self, token_ids: Tensor, view: int) -> Tensor:
        """Read some tokens into each of the first n rows and give the logits after each; no row goes on yet.

        Args:
            token_ids: (n, w), int64, on the logits device, w at most `widest`; a row has room for two more than w.
            view: how many columns are looked at, at least those of all rows that count with their new tokens.
        Returns:
            (n, w, vocab_size), floating, on the logits device. Host sync: none.
        """

    def advance(self, counts: Tensor) -> None:
        """Let rows go on by the first tokens of the step before, and forget the others.

        Args:
            counts: (n,), int64, on the logits device, 1 to w: how many tokens count in each of the first n rows.
        Host sync: none.
        """


@runtime_checkable
class MayPartRows(Protocol):
    """A model whose rows may be `PartsRows`.

    Attributes:
        parts_rows: whether they are.
    """

    @property
    def parts_rows(self) -> bool: ...


@runtime_checkable
class PartsRows(MayPartRows, Protocol):
    """Rows of which some may have room for more tokens than the others, if `parts_rows`."""

    def lay_out(self, length: int, rooms: Mapping[int, int]) -> None:
        """Give every row room for `length` tokens, some rows for more; moves memory, as `Rows.grow`.

        What a row has is kept as far as there is room for it.

        Args:
            rooms: how many tokens those rows have room for, by row; they are computed one by one in a step.
        """


@runtime_checkable
class Counts(Protocol):
    """Rows that count for the loop what they count on the device anyway.

    Attributes:
        counter: (count, 1), int64, which the loop sets; `step` adds 1 to those of its rows, up to length - 1.
    """

    @property
    def counter(self) -> Tensor: ...


@runtime_checkable
class SameBits(Protocol):
    """A model that can give a row the same bits in any batch."""

    def find_step_rows(self) -> int:
        """How many rows, or whole multiples of them, every step needs for that: a power of two.

        Raises:
            ModelError: it cannot be promised. It says why.
        """


@runtime_checkable
class Lent(Protocol):
    """Rows in memory that the model lends: it gets that back when a call ends, and keeps no rows for the next one."""

    def give_back(self) -> None:
        """Give the memory back; the rows are not to be used any more."""


@runtime_checkable
class ShowsWeights(Protocol):
    """A model that is no module of torch, and tells itself what it computes with."""

    def weights(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """Each weight: its name, the tensor, and the device where it is used."""


@runtime_checkable
class RecommendsSampler(Protocol):
    """A model whose checkpoint says how its tokens are best drawn; what the loop uses where no sampler is given."""

    @property
    def recommended_sampler(self) -> Sampler: ...
