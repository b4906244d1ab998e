"""A tiny model with random weights for each architecture that transformers lists, and one tokenizer for all of them."""

import warnings
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTextEncoding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import modeling_auto

from benchmarks.architectures.tiny_configs import tiny_config

Group = Literal["decoders", "vision", "images", "encoders"]

UNSUITED = {
    "gemma4_assistant": "a draft head that reads another model's keys and values",
    "gemma4_unified_assistant": "a draft head that reads another model's keys and values",
    "evolla": "it reads proteins, not images",
    "musicgen": "it writes audio codes, not text",
    "musicgen_melody": "it writes audio codes, not text",
    "pi0": "it writes movements of a robot, not text",
}
"""Model types that transformers lists among the decoders or the readers of images, though they are none by
themselves."""


def model_types(group: Group) -> list[str]:
    """What transformers lists: decoders, models that read images (all, or those that are no plain decoders), or text
    encoders."""
    decoders = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if group == "encoders":
        encoders = modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
        return sorted({*encoders, *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "xlnet"})
    of_images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    if group in ("vision", "images"):
        return sorted({*of_images} - {*decoders} if group == "vision" else of_images)
    return sorted(decoders)


def tiny_model(model_type: str, group: Group = "decoders", *, seed: int = 0) -> PreTrainedModel:
    """A model with random weights, large enough that its greedy texts vary; float32, on the CPU, in eval mode."""
    with warnings.catch_warnings(action="ignore"):  # reduced configurations warn about missing parts
        config = tiny_config(model_type, decoder=group != "encoders", images=group == "images")
        torch.manual_seed(seed)
        model: PreTrainedModel = _auto_class(model_type, group).from_config(config, dtype=torch.float32)
    randomize_(model, seed)
    return model.eval()


def _auto_class(model_type: str, group: Group) -> Any:
    if group == "decoders":
        return AutoModelForCausalLM
    if group in ("vision", "images"):
        return AutoModelForImageTextToText
    listed = model_type in modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    return AutoModelForTextEncoding if listed else AutoModel


@torch.no_grad()
def randomize_(model: PreTrainedModel, seed: int) -> None:
    """Draw the weights: embeddings at spread 1, matrices at 0.2, vectors (norms, biases) around their present
    values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() < 2:
            parameter.copy_(parameter.nan_to_num(0.0, 0.0, 0.0) + 0.1 * noise)
        else:
            parameter.copy_((1.0 if "emb" in name or "wte" in name or "wpe" in name else 0.2) * noise)


def tokenizer(vocab_size: int = 256) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes; the words that come after them are in no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġw{number}" for number in range(len(alphabet), vocab_size)]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *words])}
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=fast)
