"""The likeliest tokens at each place of a text, and the chosen one's log-probability, under the model's distribution.

Example: the model gives "cat" 0.6 and "dog" 0.3, "cat" is banned, and "dog" is drawn. The log-probability of "dog" is 0
in the distribution that it was drawn from, and log 0.3 in the model's own, where "cat" comes first.

Of a prompt "a b c", the logits after "a" give the log-probability of "b", those after "b" that of "c".
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gen.completions import TopLogprobs
from gen.devices import to_device
from gen.loop.results.ring import Packed, packed
from gen.requests.request import Request
from gen.samplers.backends.choosing import likeliest
from gen.samplers.logits import cleaned


@dataclass(frozen=True)
class Seen:
    """A model's logits before anything changed them, and the likeliest tokens under them.

    `full` has the logarithm of the sum of the exponentials of tempered logits, (n,); None if no request asks for it.

    Attributes:
        logits: (n, vocab), floating.
        logprobs, token_ids: (n, width), the likeliest tokens, best first.
    """

    logits: Tensor
    logprobs: Tensor
    token_ids: Tensor
    full: Tensor | None = None


class TopTokens:
    """Finds the likeliest tokens if a request asks for them. All rows have as many as the request that asks for most,
    rounded up to a power of two; the host takes each request's own number.

    Attributes:
        width: how many tokens a row has now; 0 if no request asks.
        tempers: whether a request asks how likely its tokens were to the model at its temperature, before all else.
    """

    def __init__(self, count: int, vocab: int, device: torch.device) -> None:
        self._count, self._vocab, self._device = count, vocab, device
        self._tables: dict[tuple[int, int], Packed] = {}  # by width and places; recorded steps use them
        self.begin()

    def begin(self) -> None:
        """All rows are free."""
        self._askers: set[Request] = set()  # the requests that ask; without them nothing is computed
        self.width = 0
        self.tempers = False

    def admit(self, requests: Sequence[Request]) -> None:
        """These requests join."""
        self._find_for(
            self._askers.union(request for request in requests if request.kept or request.top_logprobs is not None)
        )

    def retain_only(self, requests: Collection[Request]) -> None:
        """Only these requests go on."""
        if self._askers:
            self._find_for(self._askers.intersection(requests))

    def _find_for(self, askers: set[Request]) -> None:
        """Find as many tokens as these requests ask for."""
        if askers == self._askers:
            return
        self._askers = askers
        self.tempers = any(request.kept for request in askers)
        most = max((max(1, request.top_logprobs or 0) for request in self._askers), default=0)
        self.width = min(1 << (most - 1).bit_length(), self._vocab) if most else 0

    def _table(self, places: int) -> Packed:
        """The results of all rows, or of all places of all rows; made when a step with so many places first runs."""
        key = self.width, places
        if key not in self._tables:
            shape = (self._count, places)[: 1 + (places > 1)]
            own = torch.zeros(shape, dtype=torch.float32, device=self._device)
            likely = own.new_zeros((*shape, self.width), dtype=torch.int64)
            self._tables[key] = packed((own, likely, own.new_zeros(likely.shape), own))
        return self._tables[key]

    def results(self, places: int) -> Packed | None:
        """The log-probabilities of the tokens that a step with so many places has chosen, the ids and log-probabilities
        of the likeliest, and the log-probabilities of the chosen tokens at the row's temperature; None if no request
        asks.
        """
        return self._table(places) if self.width else None

    def find(self, logits: Tensor, temperatures: Tensor | float = 1.0, *, changed: bool) -> Seen:
        """The likeliest tokens of logits (n, vocab); with `changed` the logits are copied, because they will change.

        Args:
            temperatures: of the rows, (n, 1), or one number.

        Any of several equally likely tokens may be taken. Host sync: none on CUDA.
        """
        logprobs, token_ids = likeliest(logits, self.width)
        full = (cleaned(logits.float()) / temperatures).logsumexp(1) if self.tempers else None
        return Seen(logits.clone() if changed else logits, logprobs, token_ids, full)

    def write(
        self, seen: Seen, here: slice, token_ids: Tensor, ancestors: Tensor | None, temperatures: Tensor | float = 1.0
    ) -> None:
        """Set the results of the rows `here`, which have chosen token_ids (n, places) and continue their ancestors."""
        of_own, of_likely, of_logprobs, of_tempered = self._table(token_ids.shape[1])
        token_ids = token_ids.reshape(-1, 1)
        logits, logprobs, likely = seen.logits, seen.logprobs, seen.token_ids
        if ancestors is not None:
            logits, logprobs, likely = (one.index_select(0, ancestors) for one in (logits, logprobs, likely))
        chosen = token_ids.clamp(0, self._vocab - 1)  # a sampler of the user may choose an id of no token
        own = own_logprobs(logits, chosen, logprobs, likely)
        results = [(of_own, own), (of_likely, likely), (of_logprobs, logprobs)]
        if seen.full is not None:
            tempered = cleaned(seen.logits.gather(1, chosen).float()) / temperatures
            results.append((of_tempered, tempered.squeeze(1) - seen.full))
        for kept, made in results:
            kept[here].copy_(made.view(kept[here].shape))


def own_logprobs(logits: Tensor, chosen: Tensor, logprobs: Tensor, likely: Tensor) -> Tensor:
    """The log-probabilities (n,) of chosen tokens (n, 1), from those of the likeliest (n, width). Host sync: none."""
    pair = logits.gather(1, torch.cat((chosen, likely[:, :1]), 1)).float()
    own, best = cleaned(pair).unbind(1)
    return (logprobs[:, 0] + (own - best)).nan_to_num(nan=-math.inf, neginf=-math.inf)


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

    def score(self, logits: Tensor, token_ids: Sequence[int]) -> None:
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
