"""Texts as tensors on the model's device, as trainers take them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gen.calls.call import Call
from gen.completions import Completion
from gen.devices import to_device
from gen.errors import ArgumentError
from gen.loop.jobs import Job
from gen.loop.results.texts import Text
from gen.models.base import Model
from gen.requests.request import Request
from gen.samplers.kinds import draws


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollouts:
    """What `gen.generate` returns with details="tensors": the texts of all prompts, in order, samples side by side.

    The tensors are on the device of the model's logits. The token that ended a text is in them.

    Attributes:
        token_ids: (texts, longest), int64: the new tokens, and 0 behind them.
        logprobs: (texts, longest), float32: the log-probability of each token under the distribution that it was chosen
            from, and 0 behind them.
        kept: (texts, longest), float32: the part of the model's probability, at the temperature of the draw, that cuts,
            penalties, processors and the output type have left for the draw; 1 where there are none. So
            `logprobs + kept.log()` are the model's own log-probabilities at that temperature.
        lengths: (texts,), int64: how many tokens each text has.
        completions: the texts themselves, on the host.
    """

    token_ids: Tensor
    logprobs: Tensor
    kept: Tensor
    lengths: Tensor
    completions: Sequence[Completion]

    @property
    def mask(self) -> Tensor:
        """(texts, longest), bool: where there are tokens. Host sync: none."""
        return torch.arange(self.token_ids.shape[1], device=self.lengths.device) < self.lengths.unsqueeze(1)


def for_rollouts(call: Call) -> Call:
    """The call, with requests that tell what is left of the model's probability where something may take of it.

    Raises:
        ArgumentError: a text does not grow token by token, or errors are to be returned in the place of texts.
    """
    if call.failed is not None or not all(draws(request.sampler) for request in call.requests):
        raise ArgumentError(
            'details="tensors" is for whole texts that grow token by token: take gen.samplers.greedy or multinomial, '
            'and errors="raise".'
        )
    return replace(call, requests=[replace(request, kept=_is_changed(request)) for request in call.requests])


def _is_changed(request: Request) -> bool:
    """Whether something changes the distribution beside the temperature."""
    sampler = request.sampler
    cuts = (getattr(sampler, name, None) for name in ("top_k", "top_p", "min_p"))
    others = (sampler.penalties, request.constraint, request.thinking, *cuts)
    return bool(request.logits_processors) or any(one is not None for one in others)


def rollouts_of(model: Model, jobs: Sequence[Job], results: Any) -> Rollouts:
    """The tensors of texts that have ended. Host sync: none; they are copied to the device without a wait.

    Args:
        results: what the call returns with details=True.
    """
    lists = [one if isinstance(one, list) else [one] for one in (results if isinstance(results, list) else [results])]
    completions = [one for each in lists for one in each]
    texts = [text for job in jobs for text in job.texts]
    token_ids, logprobs = zip(*map(_with_end, texts), strict=True) if texts else ((), ())
    kept = [_kept(text, own) for text, own in zip(texts, logprobs, strict=True)]
    device = model.placement.logits_device
    lengths = torch.tensor([*map(len, token_ids)], dtype=torch.int64, device="cpu")
    return Rollouts(
        token_ids=_padded(token_ids, torch.int64, 0, device),
        logprobs=_padded(logprobs, torch.float32, 0, device),
        kept=_padded(kept, torch.float32, 1, device),
        lengths=to_device(lengths, device),
        completions=completions,
    )


def _with_end(text: Text) -> tuple[list[int], list[float]]:
    """The tokens of a text and their log-probabilities, those of the token that ended it included."""
    if text.end is None or text.end[0] not in text.request.eos_token_ids:
        return text.token_ids, text.logprobs
    token_id, logprob = text.end
    return [*text.token_ids, token_id], [*text.logprobs, logprob]


def _kept(text: Text, logprobs: Sequence[float]) -> Sequence[float]:
    """The part of the probability that was left at each token."""
    if not text.request.kept:
        return [1.0] * len(logprobs)
    return [math.exp(own - drawn) for own, drawn in zip(text.tempered, logprobs, strict=False)]


def _padded(lines: Sequence[Sequence[float]], dtype: torch.dtype, fill: float, device: torch.device) -> Tensor:
    made = torch.full((len(lines), max(map(len, lines), default=0)), fill, dtype=dtype, device="cpu")
    for number, line in enumerate(lines):
        made[number, : len(line)] = torch.tensor(line, dtype=dtype, device="cpu")
    return to_device(made, device)
