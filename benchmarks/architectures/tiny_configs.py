"""A configuration as small as it goes for each architecture of transformers, with windows and every kind of layer.

Sizes are set by the names of the fields: tiny_configs.json has them, and what these rules do not cover.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 256  # the tokenizer's ids, which are the bytes; the model has a few more, for padding and the like
IMAGE_TOKEN = VOCABULARY + 2  # stands for an image's features; other marks of images and sounds come after it
ALWAYS: dict[str, object] = {
    "sliding_window": 8,
    "use_sliding_window": True,
    "is_decoder": True,
    "tie_word_embeddings": False,
    "bos_token_id": VOCABULARY + 1,
    "pad_token_id": VOCABULARY,
    "eos_token_id": None,
}
"""Set wherever the field exists; sizes change no field that is None or 0."""

_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SIZES, IMAGES = (
    {name: int(size) for size, names in _DATA[table].items() for name in names} for table in ("sizes", "image_sizes")
)
"""What a number becomes in a field of this name; the second ones where a test gives images: 16 patches of 8 x 8 pixels.
A window has 8 tokens, which prompts and new tokens go beyond."""
ODD_SIZES = {
    "index_n_heads": 16,  # with few, many scores are equal to 0, and the choice among them means nothing
    "time_step_min": 1e-6,  # transformers raises smaller steps to this value in a prompt, but not in a decode step
}


def tiny_config(model_type: str, *, decoder: bool = True, images: bool = False) -> PreTrainedConfig:
    """The configuration of an architecture, as small as it goes; with `images`, its part for images too."""
    kind = CONFIG_MAPPING[model_type]
    changes: dict[str, object] = {}
    for names, change in _DATA["exceptions"] + (_DATA["image_exceptions"] if images else []):
        changes |= change if model_type in names else {}
    if not decoder and "is_decoder" in {field.name for field in fields(kind)}:
        changes = {**changes, "is_decoder": False}
    return _shrunk(kind, changes, images)


def _shrunk(kind: type[PreTrainedConfig], changes: Mapping[str, object], images: bool) -> PreTrainedConfig:
    """A configuration of this class with small sizes, every kind of layer, and the changes."""
    known = {field.name for field in fields(kind)}
    always = {name: value for name, value in ALWAYS.items() if name in known}
    default = vars(kind(**always))
    default |= {name: default[actual] for name, actual in kind.attribute_map.items() if actual in default}
    sizes = SIZES | ODD_SIZES | (IMAGES if images else {})
    values: dict[str, Any] = {name: value for name, value in sizes.items() if name in known and _is_size(default[name])}
    if images:
        values |= {name: [IMAGES[name]] * 2 for name in IMAGES if isinstance(default.get(name), list | tuple)}
        values |= _token_ids(default, known)
    values |= always
    if "kv_lora_rank" in known:  # each head has keys of its own, made from what all heads share
        values["num_key_value_heads"] = values["num_attention_heads"]
    values |= {name: value for name, value in changes.items() if name not in kind.sub_configs}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):  # the first sets their number
        if default.get(name) and name in known and name not in changes:
            kinds = list(dict.fromkeys(default[name]))
            count = max(4, len(kinds)) if name == "layer_types" else values.get("num_hidden_layers", 2)
            values[name] = [kinds[layer % len(kinds)] for layer in range(count)]
        if name == "layer_types" and name in values:
            values["num_hidden_layers"] = len(values[name])
    for name in kind.sub_configs:
        inner = changes.get(name, {})
        if isinstance(default.get(name), PreTrainedConfig) or (images and name in changes):
            part = type(default[name]) if default.get(name) else kind.sub_configs[name]
            values[name] = _shrunk(part, inner if isinstance(inner, Mapping) else {}, images)
    return kind(**values)


def _token_ids(default: Mapping[str, object], known: set[str]) -> dict[str, int]:
    """Ids of the vocabulary for the tokens that mark images and the like."""
    names = [name for name in default if name in known and name.endswith(("_token_id", "_token_index", "_patch_id"))]
    names = [name for name in names if name not in ALWAYS and not name.startswith("decoder_start")]
    of_image = [
        name for name in names if name.removesuffix("_id").removesuffix("_index") in ("image_token", "image_patch")
    ]
    others = [name for name in names if name not in of_image]
    last = VOCABULARY + 7
    return {name: IMAGE_TOKEN for name in of_image} | {
        name: min(IMAGE_TOKEN + 1 + number, last) for number, name in enumerate(others)
    }


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
