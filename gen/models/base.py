"""What a model adapter offers to the decode loop; for a new model format, write one class that meets `Model`."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gen.devices import Placement
from gen.models.idle_rows import Idle
from gen.samplers.base import Sampler
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Inputs = Mapping[str, Tensor]
"""A prompt's images as inputs of the model, on the CPU; empty without images."""


class NoRoom(Exception):
    """The rows would need more memory than they may have; try fewer rows."""


class Rows(Protocol):
    """The sequences of a batch: cache, positions and masks of each row.

    State is changed in place; the host knows how long each row is, and a step reads nothing from the device.

    Attributes:
        count: how many rows there are.
        length: how many tokens a row has room for, the prompt's included.
        refillable: whether a row can be filled while others go on; else all are filled once, at the start.
        replayable: whether a step has fixed addresses, and shapes that depend only on (rows, view): then it may be
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
        """Read prompts into rows, in place of what these rows had; the other rows stay as they are.

        Args:
            rows: one for each prompt, in order.
            prompts: token ids, at least one each.
            start: how many tokens of each prompt these rows have already; `prompts` are the tokens after those.
            inputs: the inputs of each prompt's images; empty if no prompt has images.
        Returns:
            The logits (n, vocab_size) after each prompt, floating, on the logits device. Host sync: none for texts.
        """

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """Append one token to each of the first n rows and give the logits after it.

        Args:
            token_ids: (n, 1), int64, on the logits device; the adapter moves them where the embedding is.
            view: how many columns the step attends to, more than any row that counts has tokens.
        Returns:
            (n, vocab_size), floating, on the logits device. Host sync: none. A row that is past the end of its text
            may give any values, but must not fail.
        """

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """Replace row i by what row ancestors[i] was, in place.

        Args:
            ancestors: (n,), int64, on the logits device: for the first n rows.
            view: how many columns count.
        """

    def copy(self, source: int, targets: slice, view: int) -> None:
        """Make rows equal to another one, whose first `view` columns count."""

    def parts(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """Every tensor that the rows keep: its name, the tensor, and the device where it belongs."""

    def moving(self) -> Iterable[Tensor]:
        """The tensors that a step changes in place, so that it cannot be repeated: counts, recurrent states."""

    def grow(self, length: int) -> None:
        """Make room for `length` tokens per row: the only call that moves memory."""


@runtime_checkable
class ReadsPlaces(Protocol):
    """Rows that can each go on after any of their tokens, and give logits after any of the tokens that they read.

    Attributes:
        reads_places: whether they can; recurrent states stand for all tokens of a row, and cannot go on from fewer.
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
            starts: after how many tokens of its row each piece comes; a row must have room for as many more as the
                longest piece has.
            places: the tokens of the pieces, counted from 0, after which to give logits; at least one, ascending.
        Returns:
            (n, len(places), vocab_size), floating, on the logits device; any values for places past a piece's end. Host
            sync: none.
        """


@runtime_checkable
class SharesColumns(Protocol):
    """Rows that can share the memory of columns."""

    def share(self, source: int, targets: slice, columns: int) -> None:
        """Like `Rows.copy`, for columns that the source does not change any more."""


@runtime_checkable
class SavesColumns(Protocol):
    """Rows whose columns can be copied out, and into other rows of the model, which then go on from them."""

    def save(self, row: int, start: int, end: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's columns, from the token `start` to before the token `end`.

        Returns:
            Tensors (..., tokens, width) by name, on the devices where they belong. Host sync: none.
        """

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """Put columns that `save` gave, or some of them, into a row, from the column `start` on. Host sync: none."""


@runtime_checkable
class SavesStates(SavesColumns, Protocol):
    """Rows that may have recurrent states, which stand for all tokens of a row: it goes on only where they were saved.

    Attributes:
        recurrent: whether they have; then a row goes on only after its states were loaded with its columns.
    """

    @property
    def recurrent(self) -> bool: ...
    def save_states(self, row: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's states, by name, on the devices where they belong. Host sync: none."""

    def load_states(self, row: int, states: Mapping[Hashable, Tensor]) -> None:
        """Put states that `save_states` gave into a row. Host sync: none."""

    def going_on_costs(self) -> int:
        """How many tokens from a prompt's beginning are read in the time of one token after loaded states: 1, or many
        if tokens after states are read one by one. Host sync: several, once for a model.
        """


class Model(Protocol):
    """A language model that knows where its parts are.

    Attributes:
        placement: recorded when the model is made; only its dtype may change.
        tokenizer: its ids are below vocab_size.
        vocab_size: the width of the logits, which may be more than the number of the tokenizer's ids.
        context_length: how many tokens a sequence may have, prompt and new ones; sys.maxsize if there is no limit.
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
        """The token ids of a prompt that has one place for each image, and the inputs for these images.

        Raises:
            ArgumentError: the text has another number of places, or the images cannot be used.
        """


@runtime_checkable
class Checked(Protocol):
    """A model that can change after gen has taken it over."""

    def check(self) -> object:
        """What recorded steps depend on: the tensors and modules, and everything else that the forward pass reads
        except the numbers in the tensors; None if this is not known. Called once for all requests that join the rows in
        a turn.

        Compared with `==`, even when the objects may be gone: it must hold them, since Python uses ids again.

        Raises:
            ModelError: the model has changed so that gen can no longer run it.
        """


@runtime_checkable
class TellsAtOnce(Protocol):
    """A model that is `Checked`, and can tell without a look at all of it that it cannot be run."""

    def check_usable(self) -> None:
        """Called first of all by each call. Raises a ModelError where gen cannot run the model any more."""


@runtime_checkable
class Versioned(Protocol):
    """A model that is `Checked`, and whose keys and values may be kept from call to call."""

    def version(self, checked: Any) -> object:
        """How often the numbers in the tensors of `check` have been changed so far, as torch counts it. Columns depend
        on this and on the result of `check`. Compared with `==`.

        Args:
            checked: the result of `check`, not None.
        """


@runtime_checkable
class KeepsRows(Protocol):
    """A model that keeps rows, recorded steps, an engine and prefixes from call to call.

    Attributes:
        idle: where they are.
    """

    @property
    def idle(self) -> Idle[Any]: ...


@runtime_checkable
class ProbedWide(Protocol):
    """A model of which is known how it reads several tokens of a row in a step.

    Attributes:
        goes_wide: whether its rows may be `WideRows` that do so.
        wide_difference: how far the logits of such a step are from those of plain ones, in units of their spread.
    """

    @property
    def goes_wide(self) -> bool: ...
    @property
    def wide_difference(self) -> float: ...


@runtime_checkable
class LooksByRow(Protocol):
    """Rows that can attend to just the columns that each row has, if the host says how many these are."""

    def look_at(self, lengths: Sequence[int]) -> None:
        """Set how many columns each row of the next step has, with its new token; 0 for a free row.

        With no lengths, all rows attend to all columns of a step again, as before the first call.
        """


@runtime_checkable
class WideRows(Protocol):
    """Rows that take several tokens in a step, and can drop those that turn out wrong.

    Attributes:
        widest: how many tokens a row takes in a step at most; 1 if these rows cannot take several after all.
    """

    @property
    def widest(self) -> int: ...

    def step_wide(self, token_ids: Tensor, view: int) -> Tensor:
        """Read w tokens into each of the first n rows and give the logits after each; no row goes on yet.

        Args:
            token_ids: (n, w), int64, on the logits device, w at most `widest`; a row has room for two more than w.
            view: how many columns the step attends to, at least those of every row that counts, with its new tokens.
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
    """Rows some of which may have room for more tokens than the others, if `parts_rows`."""

    def lay_out(self, length: int, rooms: Mapping[int, int]) -> None:
        """Give every row room for `length` tokens, some rows for more; moves memory, like `Rows.grow`.

        A row keeps as many of its tokens as it has room for.

        Args:
            rooms: for how many tokens the other rows get room, by row; a step computes these rows one by one.
        """


@runtime_checkable
class Counts(Protocol):
    """Rows that share their count on the device with the loop.

    Attributes:
        counter: (count, 1), int64, set by the loop; `step` adds 1 for each of its rows, up to length - 1.
    """

    @property
    def counter(self) -> Tensor: ...


@runtime_checkable
class SameBits(Protocol):
    """A model that can give a row the same logits in any batch, bit for bit."""

    def find_step_rows(self) -> int:
        """The number of rows that every step needs for this, or a multiple of it: a power of two.

        Raises:
            ModelError: the model cannot promise this; the message says why.
        """


@runtime_checkable
class Lent(Protocol):
    """Rows in memory that the model lends: the memory goes back when a call ends, so no rows are kept for the next."""

    def give_back(self) -> None:
        """Give the memory back; do not use the rows any more."""


@runtime_checkable
class ShowsWeights(Protocol):
    """A model that is no torch module, and lists its weights itself."""

    def weights(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """Each weight: its name, the tensor, and the device where it is used."""


@runtime_checkable
class RecommendsSampler(Protocol):
    """A model whose checkpoint recommends a sampler; the loop uses it if no sampler is given."""

    @property
    def recommended_sampler(self) -> Sampler: ...
