"""Vision-language models of transformers: prompts with images, and where each part of them goes."""

import inspect
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gen.devices import to_device
from gen.errors import ArgumentError, ModelError
from gen.models.base import Inputs
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.wrappers import innermost
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import Cache, PreTrainedModel, ProcessorMixin

    from gen.models.transformers.model import Mask


def reads_images(model: "PreTrainedModel") -> bool:
    """Whether the model takes images."""
    return "pixel_values" in inspect.signature(innermost(model).forward).parameters


class VisionModel(TransformersModel):
    """A vision-language model of transformers behind `gen.models.base.Model`.

    It reads images only at prefill; then it decodes like a text model. Token ids and positions go to the device of
    the embedding, pixel values to that of the vision part, which `placement.vision_device` records. Everything that a
    call needs, including its positions, belongs to the call: nothing is kept on the model.

    Attributes:
        processor: the transformers processor; never changed.
    """

    reads_images = True

    def __init__(
        self,
        model: "PreTrainedModel",
        processor: "ProcessorMixin",
        context_length: int | None = None,
        *,
        own: bool = False,
    ) -> None:
        super().__init__(model, processor.tokenizer, context_length, own=own)
        self.processor = processor
        template = getattr(processor, "chat_template", None)
        if isinstance(template, dict):  # named ones; "default" is used
            template = template.get("default")
        self.tokenizer = Tokenizer(processor.tokenizer, chat_template=template)
        self._place = getattr(processor, "image_token", None)  # the text that stands for an image, if any
        tokens = (getattr(processor, "image_token_id", None), *(getattr(processor, "image_token_ids", None) or ()))
        written = [token for token in tokens if token is not None]
        read = getattr(model.config, "image_token_id", None)
        if written and read is not None and read not in written:
            raise ModelError(
                f"{type(processor).__name__} writes images as token {written[0]}, {type(model).__name__} reads them "
                f"from token {read}: use the model's own processor."
            )

    def save(self, folder: str | PathLike[str]) -> None:
        """As for a model of texts, and its processor."""
        super().save(folder)
        self.processor.save_pretrained(folder)

    def encode(
        self, text: str, images: Sequence["Image"], *, add_special_tokens: bool = True
    ) -> tuple[list[int], Inputs]:
        """See `gen.models.base.Model.encode`."""
        if self._place and (places := text.count(str(self._place))) != len(images):
            raise ArgumentError(
                f"places for images: {places}, images: {len(images)}; write {self._place!r} where each image belongs, "
                "or let the chat template do it with chat=True."
            )
        if not images:
            encode = self.tokenizer.encode if add_special_tokens else self.tokenizer.encode_plain
            return encode(text), {}
        try:
            with torch.device("cpu"):  # whatever the caller's default is
                encoded = self.processor(
                    text=[text], images=[list(images)], add_special_tokens=add_special_tokens, return_tensors="pt"
                )
        except Exception as error:  # processors fail with errors of every kind
            raise ArgumentError(f"{type(self.processor).__name__} refuses the prompt: {error}") from error
        inputs = {name: value for name, value in encoded.items() if isinstance(value, Tensor)}
        token_ids = self.tokenizer.known(inputs.pop("input_ids")[0].tolist(), self._embedded)
        inputs.pop("attention_mask", None)
        return token_ids, inputs

    def prompt_inputs(self, token_ids: Tensor, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """See `TransformersModel.prompt_inputs`."""
        if not inputs:
            return super().prompt_inputs(token_ids, inputs)
        placed = {name: self._place_input(name, value) for name, value in inputs.items() if self.takes(name)}
        return self._positions(token_ids, inputs), placed

    def forward_all(
        self,
        token_ids: Tensor,
        positions: Tensor,
        mask: "Mask",
        cache: "Cache",
        inputs: Inputs,
        logits_to_keep: int | Tensor,
    ) -> Tensor:
        """See `TransformersModel.forward_all`.

        Raises:
            ModelError: the model finds other places for images in the tokens than its processor has made.
        Host sync: with images, the model itself waits, to compare numbers of tokens and to cut images apart.
        """
        if not inputs:
            return super().forward_all(token_ids, positions, mask, cache, inputs, logits_to_keep)
        try:
            with torch.device("cpu"):  # vision parts make some indices without a device; the default may be any
                return super().forward_all(token_ids, positions, mask, cache, inputs, logits_to_keep)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise ModelError(f"{reason}; use the processor that belongs to {type(self._inner).__name__}.") from error

    def _positions(self, token_ids: Tensor, inputs: Inputs) -> Tensor:
        """Positions in the text, or the model's own positions over time, height and width of images if it has them.

        They are computed on the CPU and given to the model, which would otherwise keep some of them for its next call.

        Raises:
            ModelError: the model needs the positions of all earlier tokens in each step.
        """
        base = getattr(self._inner, self._inner.base_model_prefix, None)
        get_rope_index = getattr(base, "get_rope_index", None)
        if get_rope_index is None:
            return super().prompt_inputs(token_ids, {})[0]
        if "indexed_attention" in (getattr(self.decoder_config, "layer_types", None) or ()):
            raise ModelError(
                f"{type(self._inner).__name__} selects tokens by positions that an image changes, which gen does not "
                "keep; give it prompts without images, or use transformers' generate."
            )
        known = inspect.signature(get_rope_index).parameters
        positions: Tensor = get_rope_index(
            input_ids=token_ids,
            attention_mask=torch.ones_like(token_ids, dtype=torch.bool),
            **{name: value for name, value in inputs.items() if name in known},
        )[0]
        return positions

    def _place_input(self, name: str, value: Tensor) -> Tensor:
        if _is_of_tokens(name):
            return to_device(value, self.placement.input_device)
        if value.is_floating_point():
            value = value.to(self.placement.dtype)
        return to_device(value, self.placement.vision_device or self.placement.input_device)


def _is_of_tokens(name: str) -> bool:
    """Whether an input has an entry for each token of the prompt."""
    return name.endswith("token_type_ids")
