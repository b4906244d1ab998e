"""The likeliest tokens at each place of a text, and what the chosen one has, under the model's own distribution.

Example: the model gives "cat" 0.6 and "dog" 0.3, "cat" is banned, and "dog" is drawn: its log-probability is 0 in the
distribution that it was drawn from, log 0.3 in the model's own, where "cat" comes first.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gen.loop.results.ring import Ring, packed
from gen.requests.request import Request
from gen.samplers.backends.choosing import likeliest

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Seen:
    """What a model's logits were before anything changed them.

    Attributes:
        logits: (n, vocab), floating.
        logprobs, token_ids: (n, width), of the likeliest tokens, best first.
    """

    logits: Tensor
    logprobs: Tensor
    token_ids: Tensor


class _Table:
    """The results of all rows, with room for `width` tokens each."""

    def __init__(self, count: int, width: int, device: torch.device, copies: torch.cuda.Stream | None) -> None:
        own = torch.zeros(count, dtype=torch.float32, device=device)
        token_ids = torch.zeros((count, width), dtype=torch.int64, device=device)
        results = packed((own, token_ids, torch.zeros((count, width), dtype=torch.float32, device=device)))
        self.own, self.token_ids, self.logprobs = results
        self.ring = Ring(results, copies)


class TopTokens:
    """Looks for them where a request asks for it. All rows have as many as the one that asks for most, in powers of
    two; the host takes each request's own number.

    Attributes:
        width: how many tokens a row has now; 0 where nobody asks.
    """

    def __init__(self, count: int, vocab: int, device: torch.device, copies: torch.cuda.Stream | None) -> None:
        self._count, self._vocab, self._device, self._copies = count, vocab, device, copies
        self._tables: dict[int, _Table] = {}  # by width; recorded steps know them
        self.begin()

    def begin(self) -> None:
        """All rows are free."""
        self._askers: set[Request] = set()  # with the last of them the work ends
        self.width = 0

    def admit(self, requests: Sequence[Request]) -> None:
        """These requests join."""
        self._look(self._askers.union(request for request in requests if request.top_logprobs is not None))

    def keep(self, requests: Collection[Request]) -> None:
        """These alone go on."""
        if self._askers:
            self._look(self._askers.intersection(requests))

    def _look(self, askers: set[Request]) -> None:
        """Look for as many tokens as these ask for."""
        if askers == self._askers:
            return
        self._askers = askers
        most = max((max(1, request.top_logprobs or 0) for request in self._askers), default=0)
        self.width = min(1 << (most - 1).bit_length(), self._vocab) if most else 0
        if self.width and self.width not in self._tables:
            self._tables[self.width] = _Table(self._count, self.width, self._device, self._copies)

    @property
    def ring(self) -> Ring | None:
        """On which the results come to the host: log-probabilities of the chosen, ids and log-probabilities of the
        likeliest; None where nobody asks."""
        return self._tables[self.width].ring if self.width else None

    def look(self, logits: Tensor, *, changed: bool) -> Seen:
        """The likeliest tokens of logits (n, vocab), which somebody will change if `changed`. Host sync: none on CUDA.

        Ties: any of the equal ones.
        """
        logprobs, token_ids = likeliest(logits, self.width)
        return Seen(logits.clone() if changed else logits, logprobs, token_ids)

    def write(self, seen: Seen, here: slice, token_ids: Tensor, ancestors: Tensor | None) -> None:
        """Set the results of the rows `here`, which have chosen token_ids (n, 1), each after its ancestor."""
        table = self._tables[self.width]
        logits, logprobs, likely = seen.logits, seen.logprobs, seen.token_ids
        if ancestors is not None:
            logits, logprobs, likely = (one.index_select(0, ancestors) for one in (logits, logprobs, likely))
        chosen = token_ids.clamp(0, self._vocab - 1)  # a sampler of the user's may choose what is no token
        table.own[here] = own_logprobs(logits, chosen, logprobs, likely)
        table.token_ids[here] = likely
        table.logprobs[here] = logprobs


def own_logprobs(logits: Tensor, chosen: Tensor, logprobs: Tensor, likely: Tensor) -> Tensor:
    """The log-probabilities (n,) of the tokens chosen (n, 1), by those of the likeliest (n, width). Host sync: none."""
    pair = logits.gather(1, torch.cat((chosen, likely[:, :1]), 1)).float()
    own, best = pair.nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf).unbind(1)
    return (logprobs[:, 0] + (own - best)).nan_to_num(nan=-math.inf, neginf=-math.inf)
