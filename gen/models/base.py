"""What the decode loop asks of a model. For a new model format, write a `Model` and its `Rows`; what you do not
override has a default, which says that they cannot do it.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from gen.devices import Placement
from gen.errors import ModelError
from gen.models.idle_rows import Idle
from gen.samplers import MultinomialSampler, Sampler
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Inputs = Mapping[str, Tensor]
"""A prompt's images as inputs of the model, on the CPU; empty without images."""


class NoRoom(Exception):
    """The rows would need more memory than they may have; try fewer rows."""


class Rows(ABC):
    """The sequences of a batch: cache, positions and masks of each row.

    State is changed in place; the host knows how long each row is, and a step reads nothing from the device.

    You write `prefill`, `step`, `reorder`, `copy` and `grow`. Everything else is for rows that can do more.

    Attributes:
        count: how many rows there are.
        length: how many tokens a row has room for, the prompt's included.
        refillable: whether a row can be filled while others go on; else all are filled once, at the start.
        replayable: whether a step has fixed addresses, and shapes that depend only on (rows, view): then it may be
            recorded, or captured as a CUDA graph.
        whole_prompts: whether a prompt must be read in one piece.
        counter: (count, 1), int64, a count of tokens that these rows share with the loop, which sets it; `step` adds 1
            for each of its rows, up to length - 1. None if they share none.
        lent: whether the memory goes back to the model when a call ends, so that no rows are kept for the next.
        saves: whether `save` and `load` work.
    """

    count: int
    length: int
    refillable: bool = False
    replayable: bool = False
    whole_prompts: bool = True
    counter: Tensor | None = None
    lent: bool = False
    saves: bool = False

    @abstractmethod
    def prefill(
        self,
        rows: slice,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int] = (),
        places: Sequence[int] = (),
        inputs: Sequence[Inputs] = (),
    ) -> Tensor:
        """Read prompts, or parts of prompts, into rows; the other rows stay as they are.

        Args:
            rows: one for each prompt, in order.
            prompts: token ids, at least one each.
            starts: after how many tokens of its row each prompt comes; what the row had after these is gone. Empty if
                all come first, as they always do in rows that are read whole and are not `recurrent`. A row must have
                room for as many more tokens as the longest prompt has.
            places: the tokens of the prompts, counted from 0 and ascending, after which to give logits, if rows read
                places; empty for each prompt's last token.
            inputs: the inputs of each prompt's images; empty if no prompt has images.
        Returns:
            The logits (n, vocab_size) after each prompt, or (n, len(places), vocab_size) after the places, any values
            for those past a prompt's end; floating, on the logits device. Host sync: none for texts.
        """

    @abstractmethod
    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """Append one token to each of the first n rows and give the logits after it.

        Args:
            token_ids: (n, 1), int64, on the logits device; the adapter moves them where the embedding is.
            view: how many columns the step attends to, more than any row that counts has tokens.
        Returns:
            (n, vocab_size), floating, on the logits device. Host sync: none. A row that is past the end of its text
            may give any values, but must not fail.
        """

    @abstractmethod
    def reorder(self, ancestors: Tensor, view: int) -> None:
        """Replace row i by what row ancestors[i] was, in place.

        Args:
            ancestors: (n,), int64, on the logits device: for the first n rows.
            view: how many columns count.
        """

    @abstractmethod
    def copy(self, source: int, targets: slice, view: int) -> None:
        """Make rows equal to another one, whose first `view` columns count."""

    @abstractmethod
    def grow(self, length: int) -> None:
        """Make room for `length` tokens per row: the only call that moves memory, beside `lay_out`."""

    def parts(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """Every tensor that the rows keep: its name, the tensor, and the device where it belongs.

        By default the tensors among the attributes, each where it is.
        """
        return [(name, value, value.device) for name, value in vars(self).items() if isinstance(value, Tensor)]

    def moving(self) -> Iterable[Tensor]:
        """The tensors that a step changes in place, so that it cannot be repeated: counts, recurrent states."""
        return ()

    def give_back(self) -> None:
        """Give `lent` memory back; the rows are not used any more."""
        return  # nothing, by default

    def look_at(self, lengths: Sequence[int]) -> None:
        """Set how many columns each row of the next step has, with its new token, 0 for a free row: rows may then
        attend to just these.

        With no lengths, all rows attend to all columns of a step again, as before the first call.
        """
        return  # nothing, by default

    # rows that can each go on after any of their tokens

    @property
    def reads_places(self) -> bool:
        """Whether each row can go on after any of its tokens, and give logits after any of those that it reads.

        Recurrent states stand for all tokens of a row, which cannot go on from fewer.
        """
        return False

    def share(self, source: int, targets: slice, columns: int) -> None:
        """Like `copy`, for columns that the source does not change any more; rows may share their memory."""
        self.copy(source, targets, columns)

    # rows whose columns can be copied out, and into other rows of the model, which then go on from them

    def save(self, row: int, start: int, end: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's columns, from the token `start` to before the token `end`.

        Returns:
            Tensors (..., tokens, width) by name, on the devices where they belong. Host sync: none.
        """
        raise _cannot(self, "save")

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """Put columns that `save` gave, or some of them, into a row, from the column `start` on. Host sync: none."""
        raise _cannot(self, "load")

    @property
    def recurrent(self) -> bool:
        """Whether rows have recurrent states, and save them; then a row goes on only after its states were loaded with
        its columns, and only where they were saved.
        """
        return False

    def save_states(self, row: int) -> Mapping[Hashable, Tensor]:
        """Copies of a row's states, by name, on the devices where they belong. Host sync: none."""
        raise _cannot(self, "save_states")

    def load_states(self, row: int, states: Mapping[Hashable, Tensor]) -> None:
        """Put states that `save_states` gave into a row. Host sync: none."""
        raise _cannot(self, "load_states")

    def going_on_costs(self) -> int:
        """The cost of a token after loaded states, in tokens of a prompt that is read from its beginning: 1, or many if
        tokens after states are read one by one. Host sync: several, once for a model.
        """
        return 1

    # rows that take several tokens in a step, and can drop those that turn out wrong

    @property
    def widest(self) -> int:
        """How many tokens a row takes in a step at most."""
        return 1

    def verify(self, token_ids: Tensor, view: int) -> Tensor:
        """Read w tokens into each of the first n rows and give the logits after each; no row goes on yet.

        Args:
            token_ids: (n, w), int64, on the logits device, w at most `widest`; a row has room for two more than w.
            view: how many columns the step attends to, at least those of every row that counts, with its new tokens.
        Returns:
            (n, w, vocab_size), floating, on the logits device. Host sync: none.
        """
        raise _cannot(self, "verify")

    def commit(self, counts: Tensor) -> None:
        """Keep the first tokens that `verify` has read, and forget the others.

        Args:
            counts: (n,), int64, on the logits device, 1 to w: how many tokens count in each of the first n rows.
        Host sync: none.
        """
        raise _cannot(self, "commit")

    # rows some of which may have room for more tokens than the others

    @property
    def parts_rows(self) -> bool:
        """Whether `lay_out` works."""
        return False

    def lay_out(self, length: int, rooms: Mapping[int, int]) -> None:
        """Give every row room for `length` tokens, some rows for more; moves memory, like `grow`.

        A row keeps as many of its tokens as it has room for.

        Args:
            rooms: for how many tokens the other rows get room, by row; a step computes these rows one by one.
        """
        raise _cannot(self, "lay_out")


class Model(ABC):
    """A language model that knows where its parts are.

    You set the first five attributes, and write `new_rows`. Everything else is for models that can do more.

    Attributes:
        placement: recorded when the model is made; only its dtype may change.
        tokenizer: its ids are below vocab_size.
        vocab_size: the width of the logits, which may be more than the number of the tokenizer's ids.
        context_length: how many tokens a sequence may have, prompt and new ones; sys.maxsize if there is no limit.
        eos_token_ids: the ids that end a text; may be empty.
        idle: where rows, recorded steps, an engine and prefixes are kept from call to call; `gen.agenerate` needs it.
            None keeps nothing.
        goes_wide: whether rows may be `widest` above 1.
        wide_difference: how far the logits of such a step are from those of plain ones, in units of their spread.
        reads_images: whether `encode` works.
    """

    placement: Placement
    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    idle: Idle[Any] | None = None
    goes_wide: bool = False
    wide_difference: float = 0.0
    reads_images: bool = False

    def __reduce__(self) -> NoReturn:
        raise ModelError("a model is neither pickled nor copied: load it in each process, as gen.run_batch does.")

    @abstractmethod
    def new_rows(self, count: int, length: int) -> Rows:
        """Room for `count` sequences of `length` tokens; more tokens come with `Rows.grow`."""

    @property
    def recommended_sampler(self) -> Sampler:
        """The sampler that the checkpoint recommends; the loop uses it if no sampler is given."""
        return MultinomialSampler()

    @property
    def parts_rows(self) -> bool:
        """Whether its rows part rows, see `Rows.lay_out`."""
        return False

    def release(self) -> None:
        """Give back the memory that the model keeps from call to call."""
        if self.idle is not None:
            self.idle.clear()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model with its tokenizer into a folder, which `gen.load` and transformers read.

        Raises:
            ModelError: it cannot be written; the message says why.
        """
        raise ModelError(f"{type(self).__name__} cannot be saved: save is for models of transformers.")

    def check_usable(self) -> None:
        """Called first of all by each call, so without a look at all of the model.

        Raises:
            ModelError: gen cannot run the model any more.
        """
        return  # nothing, by default

    def check(self) -> object:
        """What recorded steps depend on: the tensors and modules, and everything else that the forward pass reads
        except the numbers in the tensors; None if this is not known, and then no steps are recorded. Called once for
        all requests that join the rows in a turn.

        Compared with `==`, even when the objects may be gone: it must hold them, since Python uses ids again.

        Raises:
            ModelError: the model has changed so that gen can no longer run it.
        """
        return None

    def version(self, checked: Any) -> object:
        """How often the numbers in the tensors of `check` have been changed so far, as torch counts it; None if it is
        not known, and then no columns are kept from call to call. Those that are kept depend on this and on the result
        of `check`. Compared with `==`.

        Args:
            checked: the result of `check`, not None.
        """
        return None

    def find_step_rows(self) -> int:
        """The number of rows that every step needs, or a multiple of it, so that a row has the same logits in any
        batch, bit for bit: a power of two.

        Raises:
            ModelError: the model cannot promise this; the message says why.
        """
        raise ModelError(
            f"exact=True is not possible with {type(self).__name__}: it is for models of transformers, in which gen's "
            "own attention can run."
        )

    def weights(self) -> Iterable[tuple[str, Tensor, torch.device]] | None:
        """Each weight of a model that is no torch module: its name, the tensor, and the device where it is used; None
        if they cannot be looked at.
        """
        return None

    def working_memory(self) -> Iterable[tuple[str, Tensor, torch.device]]:
        """Like `weights`, what such a model computes in: caches and the like, whose numbers are not the model's."""
        return ()

    def encode(
        self, text: str, images: Sequence["Image"], *, add_special_tokens: bool = True
    ) -> tuple[list[int], Inputs]:
        """The token ids of a prompt that has one place for each image, and the inputs for these images.

        Raises:
            ArgumentError: the text has another number of places, or the images cannot be used.
        """
        raise _cannot(self, "encode")


def _cannot(made: object, name: str) -> NotImplementedError:
    return NotImplementedError(f"{type(made).__name__} has no {name}, which it says it has: see gen.models.base")
