"""Penalties and bans, for each row its own: biases, repetition, banned words and n-grams, the least length.

They are in tables on the device, with a line for each row. Example of a ban: a row whose text ends in "New" bans "York"
if ("New", "York") is in its table of words. Each ban of a step is one index with -inf, and one scatter writes all of
them into the logits.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.requests.request import Request
from gen.samplers.penalties import Penalties
from gen.stages.stage import Here, Stage, lines

_NOTHING, _ANYTHING = -2, -3  # in the table of words: equal to no token, to every token
_NONE = Penalties()
_SMALLEST = 1e-30  # a penalty that is smaller would be 0 in float32


class PenaltyStage(Stage):
    """Runs the penalties of `gen.samplers.Penalties`, which says what each of them does, in its order.

    Tables have as many columns as the requests so far have needed, rounded up to a power of two. A table that is too
    small is replaced by a new one; then `key` changes.
    """

    looks_back = takes_places = True

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._bias_ids = self._table(torch.int64, 0, 0)
        self._biases = self._table(torch.float32, 0, 0.0)
        self._words = torch.full((count, 0, 0), _NOTHING, dtype=torch.int64, device=device)
        self._eos = self._table(torch.int64, 0, -1)
        self._minimum, self._ngram = (self._table(torch.int64, 1, 0) for _ in range(2))
        self._repetition = self._table(torch.float32, 1, 1.0)
        self._presence, self._frequency = (self._table(torch.float32, 1, 0.0) for _ in range(2))
        self._version = 0
        self.begin()

    def begin(self) -> None:
        self._used: set[str] = set()
        self._sizes: set[int] = set()

    def key(self) -> Hashable:
        return (self._version, *sorted(self._used), *sorted(self._sizes)) if self._used else None

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        asked = [request.sampler.penalties or _NONE for request in requests]
        if not self._used and all(one == _NONE for one in asked):
            return
        each = (rows.stop - rows.start) // len(requests)
        if not self._used:
            self._clear()
        for request, one in zip(requests, asked, strict=True):
            self._note(request, one)
        self._widen(requests, asked)
        tables = (
            (self._repetition, [[max(one.repetition_penalty, _SMALLEST)] for one in asked]),
            (self._presence, [[one.presence_penalty] for one in asked]),
            (self._frequency, [[one.frequency_penalty] for one in asked]),
            (self._minimum, [[one.min_new_tokens] for one in asked]),
            (self._ngram, [[one.no_repeat_ngram_size] for one in asked]),
            (self._eos, [_padded(request.eos_token_ids, self._eos.shape[1], -1) for request in requests]),
            (self._bias_ids, [_padded([*(one.logit_bias or {})], self._biases.shape[1], 0) for one in asked]),
            (self._biases, [_padded([*(one.logit_bias or {}).values()], self._biases.shape[1], 0.0) for one in asked]),
            (self._words, [_words(request.bad_words, *self._words.shape[1:]) for request in requests]),
        )
        for table, values in tables:
            if table.numel():
                lines = torch.tensor(values, dtype=table.dtype, device="cpu")
                table[rows] = to_device(lines, self._device).repeat_interleave(each, 0)

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.stages.stage.Stage`; (n, vocab) float32. Host sync: none."""
        used, vocab = self._used, logits.shape[1]
        logits = logits.float()
        if "bias" in used:
            logits = logits.scatter_add(1, lines(self._bias_ids, here), lines(self._biases, here))
        if "repetition" in used:
            penalty = lines(self._repetition, here)
            penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits = torch.where(_counts(history, vocab) > 0, penalized, logits)
        if "presence" in used:
            columns = torch.arange(history.shape[1], device=history.device)
            counts = _counts(torch.where(columns < lengths - generated, -1, history), vocab)
            logits = logits - counts * lines(self._frequency, here) - (counts > 0) * lines(self._presence, here)
        banned = []
        if self._sizes:
            banned += [self._repeated(history, lengths, here, size) for size in sorted(self._sizes)]
        if "words" in used:
            words = lines(self._words, here)
            last = _last(history, lengths, words.shape[2] - 1).unsqueeze(1)
            follows = ((last == words[..., :-1]) | (words[..., :-1] == _ANYTHING)).all(-1)
            banned.append(torch.where(follows, words[..., -1], -1))
        if "minimum" in used:
            banned.append(torch.where(generated < lines(self._minimum, here), lines(self._eos, here), -1))
        if not banned:
            return logits
        tokens = torch.cat(banned, 1)
        index = tokens.clamp(0, vocab - 1)
        return logits.scatter_add(1, index, torch.where(index == tokens, -math.inf, 0.0).float())

    def tensors(self) -> Iterable[Tensor]:
        yield from (self._bias_ids, self._biases, self._words, self._eos, self._minimum, self._ngram)
        yield from (self._repetition, self._presence, self._frequency)

    def _table(self, dtype: torch.dtype, width: int, value: float) -> Tensor:
        return torch.full((self._count, width), value, dtype=dtype, device=self._device)

    def _clear(self) -> None:
        """Reset the tables: rows that go on have asked for nothing."""
        self._repetition.fill_(1.0)
        self._words.fill_(_NOTHING)
        self._eos.fill_(-1)
        for table in (self._bias_ids, self._biases, self._minimum, self._ngram, self._presence, self._frequency):
            table.zero_()

    def _note(self, request: Request, asked: Penalties) -> None:
        """Note what is asked for."""
        present = {
            "bias": bool(asked.logit_bias),
            "repetition": asked.repetition_penalty != 1,
            "presence": bool(asked.presence_penalty or asked.frequency_penalty),
            "words": bool(request.bad_words),
            "minimum": bool(asked.min_new_tokens and request.eos_token_ids),
            "ngrams": bool(asked.no_repeat_ngram_size),
        }
        self._used |= {name for name, there in present.items() if there}
        if asked.no_repeat_ngram_size:
            self._sizes.add(asked.no_repeat_ngram_size)

    def _widen(self, requests: Sequence[Request], asked: Sequence[Penalties]) -> None:
        """Make tables wide enough for these requests."""
        bias = max(len(one.logit_bias or ()) for one in asked)
        eos = max(len(request.eos_token_ids) for request in requests)
        words = max(len(request.bad_words) for request in requests)
        length = max((len(word) for request in requests for word in request.bad_words), default=0)
        if bias > self._biases.shape[1]:
            self._bias_ids, self._biases = _wider(self._bias_ids, 0, bias), _wider(self._biases, 0.0, bias)
            self._version += 1
        if eos > self._eos.shape[1]:
            self._eos = _wider(self._eos, -1, eos)
            self._version += 1
        if words > self._words.shape[1] or length > self._words.shape[2]:
            _, old_words, old_length = self._words.shape
            shape = (self._count, _power(max(words, old_words)), _power(max(length, old_length)))
            wider = torch.full(shape, _NOTHING, dtype=torch.int64, device=self._device)
            wider[:, :old_words, shape[2] - old_length :] = self._words
            # any token may come in front of words that were there already
            there = self._words[..., -1:] >= 0 if old_length else self._words
            front = wider[:, :old_words, : shape[2] - old_length]
            front.copy_(torch.where(there, _ANYTHING, front) if old_length else front)
            self._words = wider
            self._version += 1

    def _repeated(self, history: Tensor, lengths: Tensor, here: Here, size: int) -> Tensor:
        """The tokens that would repeat a run of `size` tokens, -1 for none: (n, columns)."""
        if history.shape[1] < size:
            return torch.full_like(history[:, :1], -1)
        windows = history.unfold(1, size, 1)  # (n, columns - size + 1, size)
        same = (windows[..., :-1] == _last(history, lengths, size - 1).unsqueeze(1)).all(-1)
        return torch.where(same & (lines(self._ngram, here) == size), windows[..., -1], -1)


def _last(history: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The last `count` tokens of each row, (n, count); -4, equal to nothing, where there are none."""
    columns = lengths + torch.arange(-count, 0, device=history.device)
    return torch.where(columns < 0, -4, history.gather(1, columns.clamp(min=0)))


def _counts(tokens: Tensor, vocab: int) -> Tensor:
    """How often each row has each token: (n, vocab) float32; -1 is not counted, nor what images have beyond these."""
    counts = torch.zeros((len(tokens), vocab), dtype=torch.float32, device=tokens.device)
    index = tokens.clamp(0, vocab - 1)
    return counts.scatter_add_(1, index, (index == tokens).float())


def _padded(values: Sequence[float], width: int, value: float) -> list[float]:
    return [*values, *[value] * (width - len(values))]


def _words(words: Sequence[Sequence[int]], count: int, length: int) -> list[list[int]]:
    """Words as lines of `length`, filled in front with `_ANYTHING`; then lines of `_NOTHING`, up to `count` lines."""
    lines = [[*[_ANYTHING] * (length - len(word)), *word] for word in words]
    return [*lines, *[[_NOTHING] * length for _ in range(count - len(lines))]]


def _wider(table: Tensor, value: float, width: int) -> Tensor:
    return torch.nn.functional.pad(table, (0, _power(width) - table.shape[1]), value=value)


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()
