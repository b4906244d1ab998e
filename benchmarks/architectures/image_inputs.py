"""Two prompts with an image each, for any vision-language model of transformers: pixels in the form that it reads.

A model says in its forward's parameters what comes beside its pixels, and in `get_image_features` how many tokens an
image has. The form of the pixels is tried: the first with which the model runs, and on which its logits depend.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.architectures.tiny_configs import VOCABULARY

TEXTS = 2
BEFORE, AFTER = 2, 3  # tokens of text before and after each image
SIDE = 4  # patches of an image, in each direction

Inputs = dict[str, Any]


def image_inputs(model: PreTrainedModel) -> Inputs:
    """The arguments of the model's forward, on the CPU: `input_ids`, pixels, and what else it takes.

    Raises:
        ValueError: the model runs with no form of pixels, or its logits depend on none; what came of each.
    """
    takes = {*inspect.signature(model.forward).parameters}
    reasons = []
    for pixels in _forms(model, takes):
        name, values = next(iter(pixels.items()))
        try:
            inputs = _with_tokens(model, takes, pixels)
            with torch.no_grad():
                logits = model(**inputs).logits
                other = model(**{**inputs, name: values.flip(-1)}).logits
            if not torch.equal(logits, other):
                return inputs
            reasons.append(f"{tuple(values.shape)}: its logits do not depend on them")
        except Exception as error:  # a form that the model does not take fails with errors of every kind
            reasons.append(f"{tuple(values.shape)}: {type(error).__name__}: {' '.join(str(error).split())}"[:200])
    raise ValueError("; ".join(reasons) or "its forward takes no pixels")


def each_alone(inputs: Inputs) -> list[Inputs]:
    """The arguments for each of the prompts.

    Raises:
        ValueError: an argument is not one part after the other.
    """
    if mixed := [name for name, value in inputs.items() if len(value) % TEXTS]:
        raise ValueError(f"{', '.join(mixed)} cannot be split")
    return [{name: value.chunk(TEXTS)[text] for name, value in inputs.items()} for text in range(TEXTS)]


def _forms(model: PreTrainedModel, takes: set[str]) -> Iterator[Inputs]:
    """Pixels in each form that the model may take, first, and what comes beside them."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    vision = _vision_config(model.config)
    patch, channels = _number(vision, "patch_size"), _number(vision, "num_channels", "in_channels", "in_chans") or 3
    times, size = _number(vision, "temporal_patch_size", "patch_temporal") or 1, _number(vision, "image_size")
    size = size or SIDE * (patch or 8)
    side = size // patch if patch else SIDE
    grid = torch.tensor([[1, side, side]] * TEXTS)
    x, y = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy")
    beside: Inputs = {
        "image_grid_thw": grid,
        "image_grid_hw": grid[:, 1:],
        "spatial_shapes": grid[:, 1:],
        "target_sizes": grid[:, 1:],
        "image_sizes": torch.tensor([[size, size]] * TEXTS),
        "image_merge_sizes": torch.ones(TEXTS, dtype=torch.int64),
        "image_position_ids": torch.stack([x.flatten(), y.flatten()], -1).repeat(TEXTS, 1, 1),
    }
    beside["qformer_input_ids"] = torch.ones(TEXTS, AFTER, dtype=torch.int64)
    beside = {name: value for name, value in beside.items() if name in takes}
    patch = patch or 8
    flat = channels * times * patch**2
    for name in ("pixel_values", "flattened_patches", "image_patches"):
        if name not in takes:
            continue
        if {"image_grid_thw", "image_grid_hw"} & {*beside}:
            yield {name: drawn(TEXTS * side**2, flat), **beside}
            yield {name: drawn(TEXTS * side**2, channels * patch**2), **beside}
            yield {name: drawn(TEXTS * side**2, channels, patch, patch), **beside}
            tokens = {"image_grid_thw": torch.tensor([[1, side // 2, side // 2]] * TEXTS)}
            yield {name: drawn(TEXTS * side**2 // 4, 2 * patch, 2 * patch, channels), **beside, **tokens}
        if "spatial_shapes" in beside:
            masks = {"pixel_attention_mask": torch.ones(TEXTS, side**2, dtype=torch.int64)}
            yield {name: drawn(TEXTS, side**2, flat), **beside, **masks}
        whole = (channels, size, size)
        if "aspect_ratio_ids" in takes:  # tiles of each image
            ones = {"aspect_ratio_ids": torch.ones(TEXTS, 1, dtype=torch.int64)}
            tiles = {"aspect_ratio_mask": torch.ones(TEXTS, 1, _number(vision, "max_num_tiles"), dtype=torch.int64)}
            yield {name: drawn(TEXTS, 1, _number(vision, "max_num_tiles"), *whole), **ones, **tiles}
        if "target_sizes" in beside:  # the patches of all images side by side
            yield {name: drawn(1, channels, patch, TEXTS * side**2 * patch), **beside}
        if "high_res_pixel_values" in takes:
            beside["high_res_pixel_values"] = drawn(TEXTS, *whole)
        yield {name: drawn(TEXTS, *whole), **beside}
        yield {name: drawn(TEXTS, *whole)}
        yield {name: drawn(TEXTS, 1, *whole), **beside}
        yield {name: drawn(TEXTS, 2, *whole), **beside}  # the whole image, and a crop of the same size
        yield {name: drawn(TEXTS, side**2, flat), **beside}
        yield {name: drawn(TEXTS * side**2, times, patch, patch, channels), **beside}
        yield {name: drawn(TEXTS, side**2, flat + 2).abs(), **beside}  # a row and a column before each patch


def _with_tokens(model: PreTrainedModel, takes: set[str], pixels: Inputs) -> Inputs:
    """The pixels and the tokens of two texts, with as many places as the model has features of its image."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    place = getattr(config, "image_token_id", None) or getattr(config, "video_token_id", None)
    count = _features(model, pixels)
    text = torch.randint(1, VOCABULARY, (TEXTS, BEFORE + count + AFTER), generator=generator)
    image = torch.zeros_like(text)
    image[:, BEFORE : BEFORE + count] = 1
    ids = text.masked_fill(image.bool(), place if place is not None else 0)
    mask = torch.ones_like(ids)
    beside = {
        "attention_mask": mask,
        "mm_token_type_ids": image,
        "token_type_ids": image,
        "moe_mm_token_type_ids": image,
        "decoder_input_ids": text[:, :AFTER],
        "bbox": torch.arange(4).repeat(*ids.shape, 1),
        "image_attention_mask": mask[..., None],
        "cross_attention_mask": mask[..., None, None].expand(
            -1, -1, 1, _number(_vision_config(config), "max_num_tiles")
        ),
        "image_embeds_position_mask": image,
        "pixel_attention_mask": torch.ones(pixels["pixel_values"].shape[:-3] + pixels["pixel_values"].shape[-2:]).long()
        if "pixel_values" in pixels and pixels["pixel_values"].dim() > 3
        else None,
    }
    beside = {name: value for name, value in beside.items() if name in takes and value is not None}
    return ({"input_ids": ids} if "input_ids" in takes else {}) | beside | pixels


@torch.no_grad()
def _features(model: PreTrainedModel, pixels: Inputs) -> int:
    """How many features the model has of an image, each of which takes the place of a token."""
    owner: Any = model if hasattr(model, "get_image_features") else model.base_model
    if not hasattr(owner, "get_image_features"):
        return int(getattr(model.config, "latent_query_num", 0))
    given = {**inspect.signature(owner.get_image_features).parameters}
    if "kwargs" in given:  # it passes more than it names to the model inside
        given |= inspect.signature(getattr(model.base_model, "get_image_features", owner.get_image_features)).parameters
    every = not {*pixels} & {*given}  # it passes all that it is given
    found: Any = owner.get_image_features(**{name: value for name, value in pixels.items() if every or name in given})
    pooled = getattr(found, "pooler_output", found)
    found = found.last_hidden_state if pooled is None else pooled
    width: int = model.config.get_text_config().hidden_size
    numbers: int = sum(leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor))
    return numbers // width // TEXTS


def _vision_config(config: PreTrainedConfig) -> Any:
    for name in ("vision_config", "encoder", "vq_config"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return config


def _number(config: Any, *names: str) -> int:
    """The first of these that the configuration has; of a height and a width, the height."""
    for name in names:
        value = getattr(config, name, None)
        if value:
            return int(value[0] if isinstance(value, list | tuple) else value)
    return 0
