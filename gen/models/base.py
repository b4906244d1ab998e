"""What a model adapter offers to the decode loop; a new model format is one class that meets this."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from gen.devices import Placement
from gen.samplers.base import Sampler
from gen.tokenizers import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Inputs = Mapping[str, Tensor]  # what a prompt's images are to the model, on the CPU; empty without images


class DecodeState(Protocol):
    """One call's sequences: their cache, positions and mask. It belongs to the call, so threads can share a model."""

    def decode_step(self, token_ids: Tensor) -> Tensor:
        """Append one token to each row and give the logits after it.

        Args:
            token_ids: (rows, 1), int64, on the logits device; the adapter moves them where the embedding is.
        Returns:
            (rows, vocab_size), floating, on the logits device. Host sync: none. Shapes are static; a row that is past
            the context may give anything, but does not fail.
        """

    def reorder(self, ancestors: Tensor) -> None:
        """Make row i continue what row ancestors[i] was.

        Args:
            ancestors: (new rows,), int64, on the logits device; their number may differ from the rows' before.
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

    def prefill(self, token_ids: Tensor, attention_mask: Tensor, new_tokens: int) -> tuple[Tensor, DecodeState]:
        """Read the prompts.

        Args:
            token_ids: (rows, width), int64, on the CPU, padded on the left.
            attention_mask: (rows, width), bool, on the CPU: False at padding. Each row's last entry is True.
            new_tokens: how many tokens at most each row will get; decode_step is called fewer times than this.
        Returns:
            The logits (rows, vocab_size) after each prompt, floating, on the logits device, and the state to go on.
        """


@runtime_checkable
class ImageReader(Model, Protocol):
    """A model whose prompts may have images."""

    def encode(
        self, text: str, images: Sequence["Image"], *, add_special_tokens: bool = True
    ) -> tuple[list[int], Inputs]:
        """The token ids of a prompt with as many places for images as there are images, and what goes with them.

        Raises:
            ArgumentError: the text has another number of places, or the images cannot be used.
        """

    def prefill(
        self, token_ids: Tensor, attention_mask: Tensor, new_tokens: int, inputs: Sequence[Inputs] = ()
    ) -> tuple[Tensor, DecodeState]:
        """As `Model.prefill`.

        Args:
            inputs: one for each row, from `encode`; nothing where no row has an image.
        """


@runtime_checkable
class RecommendsSampler(Protocol):
    """A model whose checkpoint says how its tokens are best drawn; what the loop uses where no sampler is given."""

    @property
    def recommended_sampler(self) -> Sampler: ...
