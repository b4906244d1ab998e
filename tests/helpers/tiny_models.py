"""Tiny language models with random weights, and their texts by the plain forward."""

import copy
import warnings
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.architectures.tiny_configs import tiny_config
from tests.helpers.architectures import ALIBI, ONE_LAYER, SHAPES
from tests.helpers.tokenizers import BOS, byte_tokenizer

_made: dict[Hashable, tuple[PreTrainedModel, Tensor]] = {}


def tiny_model(shape: str = "one layer", *, vocab_size: int = 300, seed: int = 0, **changes: object) -> PreTrainedModel:
    """A small model with random weights, large enough that its greedy texts vary; by default a Llama of one layer.

    Each is made once, with the state of torch's random numbers after it, and then copied.
    """
    settings = (shape, vocab_size, seed, repr(sorted(changes.items())))
    key = *settings, torch.get_default_dtype(), str(torch.get_default_device())
    if key not in _made:
        _made[key] = _make(shape, vocab_size, seed, changes), torch.get_rng_state()
    model, state = _made[key]
    torch.manual_seed(seed)
    torch.set_rng_state(state)
    return copy.deepcopy(model)


def _make(shape: str, vocab_size: int, seed: int, changes: dict[str, object]) -> PreTrainedModel:
    tokens = {"bos_token_id": BOS, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    given = {"vocab_size": vocab_size} | tokens | changes
    with warnings.catch_warnings(action="ignore"):  # reduced configs warn about missing parts
        if shape in (written := SHAPES | ALIBI | ONE_LAYER):
            name, settings = written[shape]
            config = getattr(transformers, f"{name}Config")(**(settings | given))
        else:
            config = tiny_config(shape)
            config = type(config)(**(config.to_dict() | given))
        torch.manual_seed(seed)
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.get_default_dtype())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                spread = 1.0 if "emb" in parameter_name or "wte" in parameter_name else 0.3
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def stored(
    model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None, **settings: Any
) -> Path:
    """The folder, which then has the model's checkpoint, with the tokenizer of bytes unless you give one."""
    model.save_pretrained(folder, **settings)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


@torch.inference_mode()
def plain_greedy(model: torch.nn.Module, prompt_ids: Sequence[int], new_tokens: int, known: int = 259) -> list[int]:
    """The likeliest tokens below `known`, with a plain forward for every token: no cache, padding or mask."""
    token_ids = list(prompt_ids)
    for _ in range(new_tokens):
        logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1, :known]
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt_ids) :]


def by_transformers(
    model: Any, prompt_ids: Sequence[int], new_tokens: int, eos: Sequence[int] = (), **options: Any
) -> list[int]:
    """The new tokens by transformers' own generate, up to one of `eos`: the likeliest ones, unless options differ."""
    given = torch.tensor([[*prompt_ids]])
    settings = {"attention_mask": torch.ones_like(given), "do_sample": False, "pad_token_id": 0} | options
    found = model.generate(given, max_new_tokens=new_tokens, eos_token_id=[*eos] or None, **settings)
    new: list[int] = found[0, len(prompt_ids) :].tolist()
    return new[: next((at for at, token in enumerate(new) if token in eos), len(new))]


@torch.inference_mode()
def plain_choices(
    model: torch.nn.Module, prompt_ids: Sequence[int], token_ids: Sequence[int], known: int = 259
) -> list[int]:
    """The likeliest token below `known` at the place of each token of a text, by one plain forward over the whole text.

    If they equal the text's own tokens, these are also `plain_greedy`'s, which takes a forward for every token.
    """
    given = torch.tensor([[*prompt_ids, *token_ids[:-1]]])
    logits = model(input_ids=given, use_cache=False).logits[0, len(prompt_ids) - 1 :, :known]
    choices: list[int] = logits.argmax(-1).tolist()
    return choices
