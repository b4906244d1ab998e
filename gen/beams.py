"""Beam search in the decode loop: running beams, finished texts, and the tokens that led to them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gen.devices import to_device
from gen.harvest import Harvest
from gen.isolation import isolated
from gen.models.base import Model
from gen.prefill import prefill
from gen.processing import Processing
from gen.prompts import Request
from gen.samplers import BeamSearchSampler
from gen.texts import nothing_left


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished sequence of beam search.

    Attributes:
        token_ids: its new tokens, with the eos that ended it where one did.
        logprobs: one for each token.
        score: the sum of logprobs / length ** length_penalty.
    """

    token_ids: list[int]
    logprobs: list[float]
    score: float


class _Finished:
    """Each prompt's best finished hypotheses, as tensors (prompts, beams): where they end, not what they say."""

    def __init__(self, prompts: int, sampler: BeamSearchSampler, limits: Tensor) -> None:
        shape, device = (prompts, sampler.samples), limits.device
        self.scores = torch.full(shape, -math.inf, dtype=torch.float64, device=device)  # a penalty makes them small
        self.weights = torch.full(shape, -math.inf, dtype=torch.float32, device=device)
        self.last_tokens, self.parents, self.steps = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.done = torch.zeros((prompts, 1), dtype=torch.bool, device=device)
        self._sampler = sampler
        self._limits = limits  # (prompts, 1): most new tokens

    def add(self, step: int, ended: Tensor, token_ids: Tensor, beams: Tensor, weights: Tensor) -> None:
        """Merge the candidates of a step that have ended, and keep the best; each argument is (prompts, candidates)."""
        may_end = ended & ~self.done
        may_end[:, self._sampler.samples :] = False  # the others are there to go on with
        scores = torch.where(may_end, weights.double() / (step + 1) ** self._sampler.length_penalty, -math.inf)
        best, kept = torch.cat((self.scores, scores), 1).topk(self._sampler.samples)
        self.scores = best
        self.weights = torch.cat((self.weights, weights), 1).gather(1, kept)
        self.last_tokens = torch.cat((self.last_tokens, token_ids), 1).gather(1, kept)
        self.parents = torch.cat((self.parents, beams), 1).gather(1, kept)
        self.steps = torch.cat((self.steps, torch.full_like(token_ids, step)), 1).gather(1, kept)

    def close(self, step: int, best_running: Tensor) -> None:
        """Mark the prompts that are done: no running beam can improve on what is finished.

        Args:
            best_running: (prompts, 1), the weight of the best beam that goes on.
        """
        full = ~self.scores.isneginf().any(1, keepdim=True)
        length: Tensor | int = step + 1
        if self._sampler.early_stopping == "never" and self._sampler.length_penalty > 0:
            length = self._limits.double()
        hopeless = best_running.double() / length**self._sampler.length_penalty <= self.scores.amin(1, keepdim=True)
        finished = full if self._sampler.early_stopping is True else torch.zeros_like(full)
        self.done = self.done | (full & hopeless) | finished | (self._limits <= step + 1) | best_running.isneginf()


@isolated
@torch.inference_mode()
def beam_search(model: Model, sampler: BeamSearchSampler, request: Request) -> list[list[Hypothesis]]:
    """Each prompt's finished hypotheses, best first; the same as transformers' beam search finds.

    Args:
        request: one row for each prompt, at least one new token.
    Returns:
        For each prompt up to `sampler.samples` hypotheses, one at least; fewer where a mask leaves fewer texts.
    Raises:
        SamplingError: no beam of a prompt had a token left to choose, and none had ended before.
    Host sync: none a token on CUDA; whether all are done is read one step late.
    """
    beams, device = sampler.samples, model.placement.logits_device
    rows, steps = request.rows, request.steps
    logits, state = prefill(model, request.prompts, beams, steps, request.inputs)
    eos = to_device(torch.tensor(request.eos_token_ids, dtype=torch.int64, device="cpu"), device)
    limits = to_device(torch.tensor([[row.limit] for row in rows], dtype=torch.int64, device="cpu"), device)
    finished = _Finished(len(rows), sampler, limits)
    weights = torch.full((len(rows), beams), -math.inf, dtype=torch.float32, device=device)
    weights[:, 0] = 0.0  # the beams of a prompt are equal at the start: one is continued
    groups = torch.arange(len(rows), device=device).unsqueeze(1) * beams
    vocabulary = min(model.vocab_size, model.tokenizer.vocab_size)
    token_ids = torch.zeros((len(rows), beams), dtype=torch.int64, device=device)
    harvest = Harvest(steps, token_ids, token_ids, weights, finished.done)
    count = max(2, 1 + len(eos)) * beams
    processing = sampler.processors and Processing(model, sampler.processors, request, beams)
    ran = 0
    for step in range(steps):
        if step:
            logits = state.decode_step(token_ids.view(-1, 1))
        logits = logits[:, :vocabulary]
        if processing:
            logits = processing(logits)
        found, parents, found_weights = sampler.candidates(logits, weights.view(-1), count)
        ended = torch.isin(found, eos) | (limits <= step + 1)
        finished.add(step, ended, found, parents, found_weights)
        weights, kept = found_weights.masked_fill(ended, -math.inf).topk(beams)
        token_ids, chosen = found.gather(1, kept), parents.gather(1, kept)
        finished.close(step, weights[:, :1])
        ancestors = (groups + chosen).view(-1)
        state.reorder(ancestors)
        if processing:
            processing.reorder_(ancestors)
            processing.append_(token_ids.view(-1, 1))
        harvest.push(step, token_ids, chosen, weights, finished.done)
        ran = step + 1
        if step >= harvest.lag and all(done for [done] in harvest.read(step - harvest.lag)[3]):
            break
    ends = (finished.scores, finished.weights, finished.last_tokens, finished.parents, finished.steps)
    last = Harvest(1, *ends)
    last.push(0, *ends)
    # all is read after the last event, so that this waits once
    per_prompt = list(zip(*last.read(0), strict=True))
    history = [harvest.read(step)[:3] for step in range(ran)]
    texts = [
        [_trace(history, number, *end) for end in zip(*ends_of_one, strict=True) if end[0] > -math.inf]
        for number, ends_of_one in enumerate(per_prompt)
    ]
    for step, (_, _, weights_at) in enumerate(history):
        for row, of_row, running in zip(rows, texts, weights_at, strict=True):
            if not of_row and max(running) == -math.inf:
                raise nothing_left(row, step)
    return texts


def _trace(
    history: Sequence[Sequence[list[list[int]]]],
    prompt: int,
    score: float,
    weight: float,
    last_token: int,
    parent: int,
    step: int,
) -> Hypothesis:
    """Follow a hypothesis back from its last token to the prompt."""
    token_ids, weights, beam = [last_token], [weight], parent
    for tokens_at, parents_at, weights_at in reversed(history[:step]):
        token_ids.append(tokens_at[prompt][beam])
        weights.append(weights_at[prompt][beam])
        beam = parents_at[prompt][beam]
    weights.append(0.0)
    logprobs = [later - earlier for later, earlier in pairwise(weights)]
    return Hypothesis(token_ids=token_ids[::-1], logprobs=logprobs[::-1], score=score)
