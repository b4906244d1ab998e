"""How likely the tokens of a prompt are to the model itself: computed while the prompt is read, read at the end.

Example: for the prompt "a b c", the logits after "a" give the log-probability of "b", those after "b" that of "c".
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gen.completions import TopLogprobs
from gen.devices import to_device
from gen.loop.results.top_tokens import own_logprobs
from gen.samplers.backends.choosing import likeliest


class PromptTokens:
    """Collects the log-probabilities of a prompt's tokens, part by part.

    Args:
        top: how many of the likeliest tokens are reported with each token.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._parts: list[list[Tensor]] = []  # on the CPU; copies from a GPU may be under way
        self._told: list[TopLogprobs] = []
        self._copied: torch.cuda.Event | None = None  # after the newest copy

    def look(self, logits: Tensor, token_ids: Sequence[int]) -> None:
        """Compute the log-probabilities of tokens.

        Args:
            logits: (tokens, vocab), the logits before each of these tokens; not modified.
        Host sync: none.
        """
        logprobs, likely = likeliest(logits, max(1, self._top))
        chosen = to_device(torch.tensor(token_ids, device="cpu").unsqueeze(1), logits.device)
        found = [own_logprobs(logits, chosen, logprobs, likely), likely[:, : self._top], logprobs[:, : self._top]]
        if logits.device.type == "cuda":
            found = [torch.empty_like(one, device="cpu").pin_memory().copy_(one, non_blocking=True) for one in found]
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(logits.device))
        self._parts.append(found)

    def take(self, told: Sequence[TopLogprobs]) -> None:
        """Take the results of all tokens from elsewhere; each has as many of the likeliest tokens as `top`, or more."""
        top = self._top
        self._told = [replace(one, token_ids=one.token_ids[:top], logprobs=one.logprobs[:top]) for one in told]

    def read(self) -> list[TopLogprobs]:
        """The result of each token. Host sync: on CUDA a wait for the newest copy, which is done by the time the text
        has its first token."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._told + [
            TopLogprobs(logprob=own, token_ids=token_ids, logprobs=logprobs)
            for part in self._parts
            for own, token_ids, logprobs in zip(*(one.tolist() for one in part), strict=True)
        ]
