"""The programs that are compared: gen, transformers.generate, and bare forwards. Each continues the same prompts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import gen
from gen.loop.slots import view_bucket
from gen.models.transformers.model import TransformersModel
from gen.samplers import Sampler

PROMPTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "There was a small house by the river, and"]
Program = Callable[[], object]


def some_prompts(batch: int) -> list[str]:
    return [PROMPTS[row % len(PROMPTS)] for row in range(batch)]


def ours(
    model: TransformersModel,
    prompts: Sequence[str],
    sampler: Sampler,
    new_tokens: int,
    *,
    eos_token_ids: Sequence[int] = (),
    made: int | None = None,
    **how: Any,
) -> Program:
    """`gen.generate`: log-probabilities and texts included.

    Args:
        new_tokens: the limit.
        made: how many tokens come if an eos ends the texts earlier; eos tokens are not counted.
        how: more arguments of `gen.generate`.
    """
    seeds, generate = list(range(len(prompts))), gen.generate  # this imports what it needs

    def run() -> None:
        found: Any = generate(
            model,
            list(prompts),
            sampler=sampler,
            max_new_tokens=new_tokens,
            seed=seeds,
            eos_token_id=list(eos_token_ids),
            details=True,
            **how,
        )
        lengths = {len(completion.token_ids) for completion in found}
        assert lengths == {new_tokens if made is None else made}, f"gen made {lengths} tokens"

    return run


def theirs(
    model: TransformersModel,
    prompts: Sequence[str],
    new_tokens: int,
    *,
    eos_token_ids: Sequence[int] = (),
    made: int | None = None,
    **config: Any,
) -> Program:
    """transformers' `generate` of the same model, with its dynamic cache unless `config` says otherwise.

    The eos tokens of the model's own generation config are deleted; gen has read them when it took the model.

    Args:
        new_tokens, made: as for `ours`.
        config: of `GenerationConfig`.
    """
    from transformers import GenerationConfig

    model.hf_model.generation_config.eos_token_id = None  # otherwise it would stop although it is told not to
    device = model.placement.input_device
    token_ids, mask = (tensor.to(device) for tensor in pad_left([model.tokenizer.encode(one) for one in prompts]))
    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        pad_token_id=0,
        eos_token_id=list(eos_token_ids) or None,
        disable_compile=True,
        **config,
    )
    length = token_ids.shape[1] + (new_tokens if made is None else made + 1)

    def run() -> list[str]:
        torch.manual_seed(0)
        output = model.hf_model.generate(token_ids, attention_mask=mask, generation_config=settings)
        assert output.shape[1] == length, f"transformers has rows of {output.shape[1]} tokens instead of {length}"
        return [model.tokenizer.decode(row) for row in output.tolist()]

    return run


def bare(model: TransformersModel, prompts: Sequence[str], new_tokens: int) -> Program:
    """The model's forwards over gen's rows and nothing else: no sampler, no text, no recording."""
    encoded = [model.tokenizer.encode(prompt) for prompt in prompts]
    width = max(map(len, encoded))

    def run() -> float:
        with torch.inference_mode():
            rows = model.new_rows(len(prompts), width + new_tokens)
            logits = rows.prefill(slice(0, len(prompts)), encoded)
            constant = torch.full((len(prompts), 1), 5, dtype=torch.int64, device=model.placement.logits_device)
            for step in range(new_tokens - 1):
                logits = rows.step(constant, min(view_bucket(width + step + 1), width + new_tokens))
            return float(logits[0, 0])  # waits until the device is done

    return run


def pad_left(encoded: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, (rows, width), padded on the left, on the CPU."""
    width = max(map(len, encoded))
    token_ids = torch.tensor([[0] * (width - len(ids)) + [*ids] for ids in encoded])
    mask = torch.tensor([[False] * (width - len(ids)) + [True] * len(ids) for ids in encoded])
    return token_ids, mask
