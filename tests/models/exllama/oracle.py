"""Transformers' logits for a checkpoint in float16: each text alone, by one plain forward, without gen."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import gen
from tests.helpers import byte_tokenizer

NEAR = 0.1  # logits of one model in float16 differ by less if computed in another order


class Plain:
    """A checkpoint as transformers runs it on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval()

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], new: Sequence[int]) -> Tensor:
        """(new + 1, vocabulary), float32: after the prompt, and after each new token."""
        logits: Tensor = self.model(input_ids=torch.tensor([[*prompt, *new]]), use_cache=False).logits[0]
        return logits[len(prompt) - 1 :].float()

    def check_greedy(self, prompt: str | Sequence[int], token_ids: Sequence[int], known: int = 259) -> None:
        """Check that each token is the likeliest, or as likely as that within float16's rounding."""
        prompt_ids = byte_tokenizer()(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        logits = self.logits(prompt_ids, token_ids[:-1])[:, :known]
        chosen = logits.gather(1, torch.tensor([token_ids]).T).squeeze(1)
        assert (logits.amax(1) - chosen <= 2 * NEAR).all()


@cache
def plain_of(folder: Path) -> Plain:
    """The same for tests that share a folder, and change neither it nor the model."""
    return Plain(folder)


@torch.inference_mode()
def logits_of(model: Any, prompts: Sequence[Sequence[int]], new: Sequence[Sequence[int]], rows: Any = None) -> Tensor:
    """The same for a model of gen: (prompts, new + 1, vocabulary), all prompts in one batch; on the CPU."""
    room = max(map(len, prompts)) + len(new[0]) + 2
    rows = rows or model.new_rows(len(prompts), room)
    found = [rows.prefill(slice(0, len(prompts)), prompts)]
    for tokens in zip(*new, strict=True):
        found.append(rows.step(torch.tensor(tokens).unsqueeze(1).to(found[0].device), room))
    return torch.stack(found, 1).float().cpu()


def ids(*texts: str) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def tokens_of(made: Any) -> Any:
    """The token ids of completions, in the same lists of lists."""
    return [tokens_of(one) for one in made] if isinstance(made, list) else made.token_ids


def generated(model: Any, prompts: Any, sampler: Any, new_tokens: int = 5, **options: Any) -> Any:
    given = dict[str, Any](seed=3, eos_token_id=[], details=True) | options
    return gen.generate(model, prompts, sampler=sampler, max_new_tokens=new_tokens, **given)
