"""Runs a sampler's processors in the decode loop: keeps the tokens so far on the device, and their constants."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.models.base import Model
from gen.prompts import Request
from gen.samplers.processors import (
    Processors,
    add_bias,
    ban_repeated_ngrams,
    ban_sequence,
    ban_until,
    penalize_presence,
    penalize_repetition,
)


class Processing:
    """One call's processors: called on the logits of each step, told of each token.

    State: `seen` (rows, prompt and new tokens) int64, -1 where there is none, and the column of the next token. It is
    changed in place and never read on the host.
    """

    def __init__(self, model: Model, processors: Processors, request: Request, texts: int) -> None:
        device = model.placement.logits_device
        prompts = [prompt for prompt in request.prompts for _ in range(texts)]
        self._processors = processors
        self._width = max(map(len, prompts))
        seen = torch.full((len(prompts), self._width + request.steps), -1, dtype=torch.int64, device="cpu")
        for row, prompt in enumerate(prompts):
            seen[row, self._width - len(prompt) : self._width] = torch.tensor(prompt, device="cpu")
        self._seen = to_device(seen, device)
        self._position = torch.full((1,), self._width, dtype=torch.int64, device=device)
        self._eos = _ids(request.eos_token_ids, device)
        self._bad = [_ids(sequence, device) for sequence in request.bad_words]
        self._bias = None
        if processors.logit_bias:
            bias = torch.zeros(min(model.vocab_size, model.tokenizer.vocab_size), dtype=torch.float32, device="cpu")
            for token_id, value in processors.logit_bias.items():
                bias[token_id] = value
            self._bias = to_device(bias, device)

    def __call__(self, logits: Tensor) -> Tensor:
        """The processed logits (rows, vocab), float32. Host sync: none."""
        asked = self._processors
        if self._bias is not None:
            logits = add_bias(logits, self._bias)
        if asked.repetition_penalty != 1:
            logits = penalize_repetition(logits, self._seen, asked.repetition_penalty)
        if asked.frequency_penalty or asked.presence_penalty:
            new = self._seen[:, self._width :]
            logits = penalize_presence(logits, new, asked.presence_penalty, asked.frequency_penalty)
        if asked.no_repeat_ngram_size:
            logits = ban_repeated_ngrams(logits, self._seen, self._position, asked.no_repeat_ngram_size)
        for sequence in self._bad:
            logits = ban_sequence(logits, self._seen, self._position, sequence)
        if asked.min_new_tokens and len(self._eos):
            logits = ban_until(logits, self._eos, self._position - self._width >= asked.min_new_tokens)
        return logits

    def append_(self, token_ids: Tensor) -> None:
        """Take the token (rows, 1) that each row got."""
        self._seen.index_copy_(1, self._position, token_ids)
        self._position.add_(1)

    def reorder_(self, ancestors: Tensor) -> None:
        """Make row i continue what row ancestors[i] was."""
        self._seen.copy_(self._seen.index_select(0, ancestors))


def _ids(token_ids: Sequence[int], device: torch.device) -> Tensor:
    return to_device(torch.tensor(token_ids, dtype=torch.int64, device="cpu"), device)
