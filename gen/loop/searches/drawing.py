"""Draws the token of every row by itself, each with its own temperature, cuts and seed; temperature 0 is greedy.

The random key of a draw is made from the request's seed and how many tokens its text has, and from nothing else. So a
text is the same in any row, any batch and on any device. Example: a row with seed 7 has the keys k(7, 0), k(7, 1), ...;
the device looks up the key for its own count of tokens, which the host need not know.
"""

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.loop.results.ring import packed
from gen.loop.searches.search import Given, Search
from gen.requests.request import Request
from gen.samplers import MultinomialSampler
from gen.samplers.backends.choosing import draw, most_likely
from gen.samplers.backends.random import row_keys
from gen.samplers.base import Sampler
from gen.samplers.parameters import DTYPES, NEUTRAL, Table, table_of_numbers
from gen.stages.stage import Here, Places, lines

_GREEDY = (0.0, None, None, None)  # the numbers of a sampler that takes the most likely token


class DrawKeys:
    """A table of each row's keys, by the number of its tokens.

    Attributes:
        table: (count, length), int64.
    """

    def __init__(self, count: int, length: int, device: torch.device) -> None:
        self._seeds = torch.zeros(count, dtype=torch.int64, device=device)
        self.table = torch.zeros((count, length), dtype=torch.int64, device=device)

    def admit(self, rows: slice, seeds: Sequence[int]) -> None:
        """Rows begin with texts of these seeds."""
        self._seeds[rows] = to_device(torch.tensor(seeds, dtype=torch.int64, device="cpu"), self._seeds.device)
        self.table[rows] = row_keys(self._seeds[rows], self.table.shape[1]).T

    def next(self, here: Here, generated: Tensor) -> Tensor:
        """The keys (n,) of the rows or places `here`, which have `generated` tokens, (n, 1). Host sync: none."""
        if isinstance(here, Places):
            return self.table[here.rows].gather(1, generated.view(-1, here.width)).view(-1)
        return self.table[here].gather(1, generated).squeeze(1)

    def grow(self, length: int) -> None:
        """Extend the table to more tokens."""
        self.table = row_keys(self._seeds, length).T.contiguous()

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""
        return (self._seeds, self.table)


class Drawing(Search):
    """The search of greedy and multinomial samplers.

    The parameters of each row are in tables on the device, which change when rows begin. A step reads the tables that
    any request has used since `begin`; if all of these requests are greedy, it draws nothing.

    Attributes:
        draws: see `gen.loop.searches.search.Search`; whether any request is not greedy.
    """

    picks = True

    def __init__(self, count: int, device: torch.device) -> None:
        token_ids = torch.zeros((count, 1), dtype=torch.int64, device=device)
        self.results = packed((token_ids, torch.zeros(count, dtype=torch.float32, device=device)))
        self._token_ids, self._logprobs = self.results
        self._tables = {
            name: torch.full((count, 1), value, dtype=DTYPES[name], device=device) for name, value in NEUTRAL.items()
        }
        self.begin()

    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""
        self.draws = False
        self._used = ["scale"]

    def key(self) -> Hashable:
        return (self.draws, *self._used)

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        asked = [numbers for request in requests for numbers in [_numbers(request.sampler)] * len(request.seeds)]
        self.draws = self.draws or any(numbers != _GREEDY for numbers in asked)
        for name, column in table_of_numbers(asked)._asdict().items():
            table = self._tables[name]
            if column is not None and name not in self._used:
                table.fill_(NEUTRAL[name])  # for running rows, which do not use this parameter
                self._used.append(name)
            if column is not None:
                table[rows] = to_device(column, table.device)
            elif name in self._used:
                table[rows] = NEUTRAL[name]

    def choose(self, given: Given) -> None:
        here = given.here
        assert isinstance(here, slice)  # tells mypy
        self._token_ids[here], self._logprobs[here] = self.pick(given)

    def pick(self, given: Given) -> tuple[Tensor, Tensor]:
        """See `gen.loop.searches.search.Search.pick`; a token that does not fit is drawn again, with the same key."""
        logits, here, keys, _, room, _ = given
        token_ids, logprobs = self._draw(logits, here, keys)
        if room is not None:
            fits = room.fits(token_ids)
            squeezed = fits.squeeze(1).logical_not()
            again, their_logprobs = self._draw(room.narrow(squeezed), here, keys, squeezed)
            token_ids = torch.where(fits, token_ids, again)
            logprobs = torch.where(squeezed, their_logprobs, logprobs)
            room.squeezed.copy_(squeezed)
        return token_ids, logprobs

    def temperatures(self, here: Here) -> Tensor:
        return NEUTRAL["scale"] / lines(self._tables["scale"], here)

    def _draw(
        self, logits: Tensor, here: Here, keys: Tensor | None, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A token for each row, (n, 1), and its log-probability, (n,); rows that are not `wanted` (n,) get any."""
        if keys is None:
            return most_likely(logits)
        return draw(logits, keys, Table(**{name: lines(self._tables[name], here) for name in self._used}), wanted)

    def tensors(self) -> Iterable[Tensor]:
        return (self._token_ids, self._logprobs, *self._tables.values())


def _numbers(sampler: Sampler) -> tuple[float | None, ...]:
    """The sampler's temperature, top_k, top_p and min_p; None for those that it does not use."""
    if not isinstance(sampler, MultinomialSampler) or sampler.parameters.greedy:
        return _GREEDY
    numbers: tuple[float | None, ...] = (sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p)  # type: ignore[assignment]
    return numbers
