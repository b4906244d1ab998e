"""Draws the token of every row by itself, each with its own temperature, cuts and seed; temperature 0 is greedy."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gen.devices import runs_triton, to_device
from gen.loop.results.ring import packed
from gen.requests.request import Request
from gen.samplers import MultinomialSampler
from gen.samplers.backends.choosing import draw, most_likely
from gen.samplers.base import Sampler
from gen.samplers.parameters import Parameters
from gen.stages.places import Here, Places, lines
from gen.stages.room import Room

_DEFAULTS = {"temperature": 1.0, "top_k": 2**62, "top_p": 1.0, "min_p": 0.0}
_DTYPES = {"temperature": torch.float32, "top_k": torch.int64, "top_p": torch.float64, "min_p": torch.float64}
_GREEDY = (0.0, None, None, None)  # the numbers of a sampler that takes the most likely token


class Drawing:
    """The search of greedy and multinomial samplers.

    While all requests have equal parameters, these are numbers, which is faster. As soon as one request differs, the
    parameters of each row are in tables on the device, until `begin` is called. Tokens are the same either way.
    """

    reorders = scores = False

    def __init__(self, count: int, device: torch.device) -> None:
        token_ids = torch.zeros((count, 1), dtype=torch.int64, device=device)
        self.results = packed((token_ids, torch.zeros(count, dtype=torch.float32, device=device)))
        self._token_ids, self._logprobs = self.results
        self._zeros = torch.zeros(count, dtype=torch.float32, device=device)
        self._tables = {
            name: torch.full((count,), value, dtype=_DTYPES[name], device=device) for name, value in _DEFAULTS.items()
        }
        self._compiled: set[Hashable] = set()
        self.begin()

    def begin(self) -> None:
        """All rows are free: forget what earlier requests asked for."""
        self._seen: dict[tuple[float | None, ...], Sampler] = {}
        self._used: list[str] = []
        self._views: dict[tuple[int, int], Parameters] = {}

    @property
    def draws(self) -> bool:
        """See `gen.loop.searches.search.Search`; False if all requests are greedy."""
        return self._seen.keys() != {_GREEDY}

    def key(self) -> Hashable:
        return tuple(self._seen) if len(self._seen) == 1 else tuple(self._used)

    def warm_up(self, logits: Sequence[Tensor], requests: Sequence[Request]) -> None:
        if not runs_triton(self._zeros):
            return
        asked = self._seen | {_numbers(request.sampler): request.sampler for request in requests}
        places = [place for place, name in enumerate(_DEFAULTS) if any(numbers[place] is not None for numbers in asked)]
        used = sorted({*self._used, *(list(_DEFAULTS)[place] for place in places)})
        for like in logits:
            kind = like.dtype, like.stride(), tuple(asked) if len(asked) == 1 else tuple(used)
            if kind in self._compiled:
                continue
            self._compiled.add(kind)
            device = self._zeros.device
            made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device).zero_()
            keys = torch.zeros(1, dtype=torch.int64, device=device)
            if len(asked) == 1:
                next(iter(asked.values())).step(made, self._zeros[:1], keys)
            else:
                tables: dict[str, Any] = {name: self._tables[name][:1] for name in used}
                draw(made, keys, Parameters(**tables))

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        columns = [numbers for request in requests for numbers in [_numbers(request.sampler)] * len(request.seeds)]
        for request in requests:
            if len(self._seen) < 2:  # from two on there are tables, for any number of samplers
                self._seen.setdefault(_numbers(request.sampler), request.sampler)
        for place, (name, default) in enumerate(_DEFAULTS.items()):
            table = self._tables[name]
            if name not in self._used and any(numbers[place] is not None for numbers in columns):
                table.fill_(default)  # the value for running rows, which do not use this parameter
                self._used.append(name)
                self._views.clear()
            if name in self._used:
                values = [default if numbers[place] is None else numbers[place] for numbers in columns]
                table[rows] = to_device(torch.tensor(values, dtype=table.dtype, device="cpu"), table.device)

    def choose(
        self,
        logits: Tensor,
        here: slice,
        keys: Tensor | None,
        generated: Tensor,
        room: Room | None = None,
        *,
        staged: bool = False,
    ) -> None:
        self._token_ids[here], self._logprobs[here] = self.pick(logits, here, keys, room)

    def pick(self, logits: Tensor, here: Here, keys: Tensor | None, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """See `gen.loop.searches.search.Picks.pick`; a token that does not fit is drawn again, with the same key."""
        token_ids, logprobs = self._draw(logits, here, keys)
        if room is not None:
            fits = room.fits(token_ids)
            squeezed = fits.squeeze(1).logical_not()
            again, their_logprobs = self._draw(room.narrow(squeezed), here, keys, squeezed)
            token_ids = torch.where(fits, token_ids, again)
            logprobs = torch.where(squeezed, their_logprobs, logprobs)
            room.squeezed.copy_(squeezed)
        return token_ids, logprobs

    def go_on(self, here: slice, token_ids: Tensor) -> None:
        self._token_ids[here] = token_ids

    def _draw(
        self, logits: Tensor, here: Here, keys: Tensor | None, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A token for each row, (n, 1), and its log-probability, (n,); rows that are not `wanted` (n,) get any."""
        if keys is None:
            return most_likely(logits)
        if len(self._seen) == 1:
            [sampler] = self._seen.values()
            assert isinstance(sampler, MultinomialSampler)  # a greedy one needs no keys; tells mypy
            return draw(logits, keys, sampler.parameters, wanted)
        return draw(logits, keys, self._parameters(here), wanted)

    def _parameters(self, here: Here) -> Parameters:
        """Each row's parameters: views of the tables, which change in place when rows are filled; copies for places."""
        if isinstance(here, Places):
            copies: dict[str, Any] = {name: lines(self._tables[name], here) for name in self._used}
            return Parameters(**copies)
        where = here.start, here.stop
        if where not in self._views:
            tables: dict[str, Any] = {name: self._tables[name][here] for name in self._used}
            self._views[where] = Parameters(**tables)
        return self._views[where]

    def tensors(self) -> Iterable[Tensor]:
        return (self._token_ids, self._logprobs, *self._tables.values())


def _numbers(sampler: Sampler) -> tuple[float | None, ...]:
    """The sampler's numbers for `_DEFAULTS`; None for those that it does not use."""
    if isinstance(sampler, MultinomialSampler):
        if not isinstance(sampler.temperature, Tensor) and sampler.temperature == 0:
            return _GREEDY
        return tuple(getattr(sampler, name) for name in _DEFAULTS)
    return _GREEDY
