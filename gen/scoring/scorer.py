"""Runs texts through a model and keeps the log-probabilities of their tokens; nothing is drawn.

Example: a question of 50 tokens has four answers of 3 tokens each. The question is read once, and the logits after it
score the first token of all four answers. Its columns of the KV cache are copied into four rows, which read the other
tokens side by side. If questions begin with the same tokens, these are read once.

Of the logits after each token, (vocabulary,), only the scored token's log-probability is kept, so memory holds the
logits of few places at a time. Rows that cannot continue from a copy, see `gen.models.base.Rows.reads_places`, read
each text token by token.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.completions import TopLogprobs
from gen.devices import to_device
from gen.errors import ArgumentError, ModelError
from gen.loop.memory import in_halves
from gen.loop.prefixes.columns import LEAST, WORTH, common
from gen.models.base import Model, Rows
from gen.models.checks import new_rows
from gen.requests.prompts import vocabulary
from gen.runtime.streams import Streams
from gen.samplers.backends.choosing import likeliest
from gen.scoring.pairs import Pair

_LOGITS = 2**23  # how many numbers the logits of one forward may have
_TOKENS = {"cpu": 1024, "cuda": 8192}  # how many tokens are read side by side, by type of device
_Wanted = tuple[int, int, int, int]  # of logits (n, places, vocab): row, place, the token, and the number of its pair
_ROOM = 16  # the rows of a batch may have room for 16 times as many tokens, with those that were read before


@dataclass(frozen=True, kw_only=True)
class Score:
    """How likely a text is to a model, token by token.

    Attributes:
        token_ids: the tokens that were scored.
        logprobs: each token's natural log-probability under the model's own distribution.
        is_argmax: for each token, whether no other one is likelier.
        top_logprobs: for each token, the likeliest tokens in its place; None if not asked for.
        start: at which character of the prompt and its continuation together the scored text begins: the prompt's
            length, or less if the prompt's last characters and the continuation's first ones are in one token. For
            chats it counts the text that the template writes. None if the prompt is token ids.
    """

    token_ids: list[int]
    logprobs: list[float]
    is_argmax: list[bool]
    top_logprobs: list[TopLogprobs] | None = None
    start: int | None = None

    @property
    def sum(self) -> float:
        """The natural log-probability of the whole text."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean of -logprob over its tokens."""
        try:
            return math.exp(-self.sum / len(self.logprobs))
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class _Piece:
    """Tokens that a row reads.

    Attributes:
        start: how many tokens the row has before these.
        first: the index of the first token after which logits are wanted; they are wanted after all later ones too.
        wanted: the numbers of pairs, each with the tokens that these logits score, one for each place.
    """

    tokens: Sequence[int]
    start: int
    first: int
    wanted: Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class _Group:
    """A context, and the pairs that continue it, with their numbers."""

    context: tuple[int, ...]
    pairs: list[tuple[int, Pair]] = field(default_factory=list)

    @property
    def splits(self) -> bool:
        """Whether several texts continue the context; then each has a row of its own after the context."""
        return len(self.pairs) > 1

    @property
    def read(self) -> tuple[int, ...]:
        """What the context's row reads: the context; or a single pair without its last token, which predicts none."""
        return self.context if self.splits else self.context + self.pairs[0][1].continuation[:-1]

    def piece(self, start: int) -> _Piece:
        """What the context's row reads after its first `start` tokens."""
        wanted = [(number, pair.continuation[: 1 if self.splits else None]) for number, pair in self.pairs]
        return _Piece(self.read[start:], start, len(self.context) - 1 - start, wanted)


@dataclass(frozen=True)
class _Found:
    """Results for some tokens; tensors are on the device of the logits.

    Attributes:
        numbers: the number of each token's pair.
        values: (n, 2), each token's log-probability, and 1 if no other token is likelier, else 0.
        top_logprobs, top_ids: (n, top), the likeliest tokens; None if not asked for.
    """

    numbers: list[int]
    values: Tensor
    top_logprobs: Tensor | None
    top_ids: Tensor | None


class Scorer:
    """Scores pairs in rows of its own.

    Args:
        top: how many of the likeliest tokens are kept for each place, at least 1; None for none.
        max_batch_tokens: how many tokens rows may have room for together; None for what memory allows. It is also an
            attribute, as an int.
    Raises:
        ArgumentError: max_batch_tokens is no whole number of at least 1.
    """

    def __init__(self, model: Model, *, top: int | None = None, max_batch_tokens: int | None = None) -> None:
        if max_batch_tokens is not None:
            max_batch_tokens = read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
        self._model, self._top, self.max_batch_tokens = model, top, max_batch_tokens
        self._streams = Streams(model.placement)
        self._tokens = _TOKENS.get(model.placement.logits_device.type, _TOKENS["cpu"])
        self._room = max_batch_tokens or _ROOM * self._tokens
        self._places = max(1, _LOGITS // model.vocab_size)

    def check(self, pairs: Sequence[Pair]) -> None:
        """Raise an ArgumentError if max_batch_tokens is too little for one of the pairs."""
        most = self.max_batch_tokens
        for pair in pairs:
            if most is not None and pair.length > most:
                raise ArgumentError(
                    f"max_batch_tokens={most} is too little for {pair.name}, whose {pair.length} tokens are read in "
                    "one row; give more, or a shorter text."
                )

    def run(self, pairs: Sequence[Pair]) -> list[Score]:
        """A score for each pair, in order. Host sync: one at the end.

        Raises:
            ArgumentError: max_batch_tokens is too little for one of the pairs; nothing has run.
            ModelError: memory has no room for one of the pairs, or the model gives NaN.
        """
        self.check(pairs)
        if not pairs:
            return []
        with self._streams.current():
            found = list[_Found]()
            for batch in self._batches(pairs):
                in_halves(lambda part: found.extend(self._run_together(part)), batch, self._too_large)
            return _scores(pairs, found)

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[list[_Group]]:
        """The groups that are read together: of similar lengths, and among these with similar beginnings."""
        goes_on = self._goes_on()
        groups: dict[Hashable, _Group] = {}
        for number, pair in enumerate(pairs):
            groups.setdefault(pair.context if goes_on else number, _Group(pair.context)).pairs.append((number, pair))
        batch: list[_Group] = []
        for group in sorted(groups.values(), key=lambda one: (-(len(one.read) // 16), one.context)):
            more = [*batch, group]
            tokens = max(len(one.read) for one in more) - (_shared(more) if goes_on else 0)
            if batch and (len(more) * tokens > self._tokens or len(more) * _length(more) > self._room):
                yield batch
                more = [group]
            batch = more
        yield batch

    def _goes_on(self) -> bool:
        """Whether rows can continue from copies of other rows."""
        rows = new_rows(self._model, 1, 1)
        rows.give_back()
        return rows.reads_places

    def _too_large(self, group: _Group) -> tuple[str, str]:
        where = self._model.placement.logits_device
        return f"{group.pairs[0][1].name} does not fit into the memory of {where}", "Score a shorter text."

    def _run_together(self, batch: Sequence[_Group]) -> list[_Found]:
        batch = sorted(batch, key=lambda group: -len(group.read))  # the longest first: the last rows run out first
        others = [(row, *one) for row, group in enumerate(batch) if group.splits for one in group.pairs]
        others = [one for one in others if len(one[2].continuation) > 1]
        others.sort(key=lambda one: -len(one[2].continuation))
        longest = len(others[0][2].continuation) if others else 1
        length = _length(batch)
        side_by_side = max(1, min(len(others), self._tokens // longest, self._room // length - len(batch)))
        rows = new_rows(self._model, len(batch) + (side_by_side if others else 0), length)
        try:
            if not rows.reads_places:
                return list(self._read_by_steps(rows, batch))
            found = list(self._read_contexts(rows, batch))
            for start in range(0, len(others), side_by_side):
                part = others[start : start + side_by_side]
                for target, (source, _, pair) in enumerate(part, len(batch)):
                    rows.share(source, slice(target, target + 1), len(pair.context))
                found += self._read(rows, len(batch), [_rest(number, pair) for _, number, pair in part])
            return found
        finally:
            rows.give_back()

    def _read_contexts(self, rows: Rows, batch: list[_Group]) -> Iterator[_Found]:
        """Read what each group's row reads; the tokens with which all of them begin are read once."""
        shared = _shared(batch)
        if shared:
            rows.prefill(slice(0, 1), [batch[0].context[:shared]])
            rows.share(0, slice(1, len(batch)), shared)
        return self._read(rows, 0, [group.piece(shared) for group in batch])

    def _read(self, rows: Rows, first: int, pieces: Sequence[_Piece]) -> Iterator[_Found]:
        """Read pieces side by side, into rows from `first` on, in parts whose logits have at most `_LOGITS` numbers."""
        done, width = 0, max(len(piece.tokens) for piece in pieces)
        while done < width:
            going = [row for row, piece in enumerate(pieces) if len(piece.tokens) > done]
            low, high = going[0], going[-1] + 1
            wanted = sorted({p for row in going for p in range(max(done, pieces[row].first), len(pieces[row].tokens))})
            most = max(1, self._places // (high - low))
            end = width if len(wanted) <= most else wanted[most - 1] + 1
            # a row with nothing left, between rows that have more, reads its last token again
            begins = [min(done, len(piece.tokens) - 1) for piece in pieces[low:high]]
            parts = [piece.tokens[begin:end] for begin, piece in zip(begins, pieces[low:high], strict=True)]
            starts = [piece.start + begin for begin, piece in zip(begins, pieces[low:high], strict=True)]
            places = [place for place in wanted if place < end]
            here = slice(first + low, first + high)
            logits = rows.prefill(here, parts, starts, [place - done for place in places])
            yield self._look(logits, _wanted(pieces[low:high], places))
            done = end

    def _read_by_steps(self, rows: Rows, batch: list[_Group]) -> Iterator[_Found]:
        """Read contexts as prompts, and then one token at each step; each group has one pair."""
        pairs = [group.pairs[0] for group in batch]
        logits = rows.prefill(slice(0, len(pairs)), [pair.context for _, pair in pairs])
        device = logits.device
        for place in range(max(len(pair.continuation) for _, pair in pairs)):
            if place:
                newest = [[pair.continuation[min(place, len(pair.continuation)) - 1]] for _, pair in pairs]
                logits = rows.step(to_device(torch.tensor(newest, device="cpu"), device), rows.length)
            wanted = [
                (row, 0, pair.continuation[place], number)
                for row, (number, pair) in enumerate(pairs)
                if place < len(pair.continuation)
            ]
            yield self._look(logits.unsqueeze(1), wanted)

    def _look(self, logits: Tensor, wanted: Sequence[_Wanted]) -> _Found:
        """The results from logits (n, places, vocab_size): a few numbers for each wanted token."""
        logits = logits[..., : vocabulary(self._model)]
        rows, places, tokens = (
            to_device(torch.tensor([one[part] for one in wanted], device="cpu"), logits.device) for part in range(3)
        )
        logits = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        tops = (None, None) if self._top is None else likeliest(logits.flatten(0, 1), self._top)
        at = rows * logits.shape[1] + places
        # relative to the best logit, so that log-probabilities near 0 keep their digits
        relative = logits - logits.amax(-1, keepdim=True)
        own = relative[rows, places, tokens]
        total = relative.exp_().sum(-1).log_()[rows, places]
        values = torch.stack((own - total, (own == 0).to(own.dtype)), 1)
        logprobs, token_ids = (one if one is None else one.index_select(0, at) for one in tops)
        return _Found([number for *_, number in wanted], values, logprobs, token_ids)


def _wanted(pieces: Sequence[_Piece], places: Sequence[int]) -> list[_Wanted]:
    """Which logits of these places the pieces want; each piece has one row."""
    return [
        (row, at, tokens[place - piece.first], number)
        for row, piece in enumerate(pieces)
        for at, place in enumerate(places)
        if piece.first <= place < len(piece.tokens)
        for number, tokens in piece.wanted
    ]


def _rest(number: int, pair: Pair) -> _Piece:
    """What a row reads of a continuation, after its context has been read and has scored its first token."""
    return _Piece(pair.continuation[:-1], len(pair.context), 0, [(number, pair.continuation[1:])])


def _length(batch: Sequence[_Group]) -> int:
    """How many tokens rows need room for: pieces are padded to the longest one, and a step needs one token more."""
    longest = max(len(pair.continuation) for group in batch for _, pair in group.pairs)
    return max(len(group.context) for group in batch) + longest


def _shared(batch: Sequence[_Group]) -> int:
    """How many tokens all contexts of a batch begin with in common; 0 if reading them once is not worth it.

    Each row reads the last token of its context itself, because logits are wanted after this token.
    """
    first, *others = (group.context for group in batch)
    shared = min((common(first, other) for other in others), default=0)
    shared = min(shared, *(len(group.context) - 1 for group in batch)) if shared else 0
    return shared if shared >= LEAST and shared * len(others) >= WORTH else 0


def _scores(pairs: Sequence[Pair], found: Sequence[_Found]) -> list[Score]:
    """Copy all results to the host at once, and make the score of each pair."""
    numbers = [number for one in found for number in one.numbers]
    values = torch.cat([one.values for one in found]).tolist()
    tops: list[Any] = [None] * len(numbers)
    if found[0].top_ids is not None:
        logprobs = torch.cat([one.top_logprobs for one in found if one.top_logprobs is not None]).tolist()
        ids = torch.cat([one.top_ids for one in found if one.top_ids is not None]).tolist()
        tops = list(zip(ids, logprobs, strict=True))
    of: list[list[tuple[float, float, Any]]] = [[] for _ in pairs]
    for number, (logprob, hit), top in zip(numbers, values, tops, strict=True):
        of[number].append((logprob, hit, top))
    return [_score(pair, rows) for pair, rows in zip(pairs, of, strict=True)]


def _score(pair: Pair, rows: Sequence[tuple[float, float, Any]]) -> Score:
    if any(math.isnan(logprob) for logprob, _, _ in rows):
        raise ModelError(f"{pair.name}: the model gives NaN or infinity; see whether it overflows in this dtype.")
    tops = [TopLogprobs(logprob=own, token_ids=top[0], logprobs=top[1]) for own, _, top in rows if top is not None]
    return Score(
        token_ids=list(pair.continuation),
        logprobs=[logprob for logprob, _, _ in rows],
        is_argmax=[bool(hit) for _, hit, _ in rows],
        top_logprobs=tops or None,
        start=pair.start,
    )
