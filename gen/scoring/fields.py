"""How sure a model was of each leaf of a value: how likely the leaf was, and the best other value in its place.

Example: the text is {"happy": true}, with the tokens `{"`, `happy`, `": `, `true` and `}`. Its only leaf is `true`, at
("happy",). After `{"happy": ` the type's automaton leads to the texts `true` and `false` alone, so `false` is the only
other value in its place: both are scored there.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import ref

from gen.completions import Completion, FieldScore
from gen.constraints.composing.splitting import Recogniser, TableRecogniser, recogniser
from gen.constraints.composing.trees import Plan
from gen.constraints.constraint import Constraint
from gen.errors import ArgumentError, show
from gen.models.base import Model
from gen.receipts.digests import weights_version
from gen.requests.request import Request
from gen.runtime.isolation import isolated
from gen.scoring.pairs import Pair
from gen.scoring.scorer import Score, Scorer

_MOST = 100  # values in the place of one leaf
_LEAF = json.JSONDecoder()
_IN_NUMBERS = frozenset(b"-+.0123456789Ee")
_FIRST = frozenset(b'"-0123456789tfn')  # what a leaf begins with


class _Leaf(NamedTuple):
    """A leaf of a value, and which characters of the text it is."""

    path: tuple[str | int, ...]
    start: int
    end: int


class _Place(NamedTuple):
    """Which tokens have a leaf, and what else they have: bytes before and after it."""

    first: int
    last: int
    before: bytes
    after: bytes


class FieldScorer:
    """Scores the leaves of a call's values, when they are asked for. It does not keep the model.

    Args:
        version: of the model's weights, from `weights_version`.
    """

    def __init__(self, model: Model, version: object) -> None:
        self._model, self._version = ref(model), version

    @isolated
    def scores(self, request: Request, completion: Completion) -> list[FieldScore]:
        """See `Completion.fields`."""
        model, constraint = self._model(), request.constraint
        if model is None:
            raise ArgumentError("no fields: the model is gone, and it has to read the text again; ask before.")
        plan: Any = None if constraint is None else constraint.tree  # its key is a tuple
        in_json = isinstance(plan, Plan) and plan.schema is not None
        if constraint is None or not (in_json or plan.key[0] in ("choice", "text")):
            raise ArgumentError(
                "fields are those of a value whose text is JSON, a date, another scalar, or one of some options."
            )
        if request.inputs:
            raise ArgumentError("no fields: the prompt has images, and scores are of texts alone.")
        if weights_version(model) != self._version:
            raise ArgumentError(
                "no fields: the model's weights have been changed since the call, or other adapters are active; ask "
                "before."
            )
        if not constraint.accepts(completion.text):
            raise ArgumentError(f"fields are those of a whole value, and this text is none: {show(completion.text)}.")
        leaves = [_Leaf((), 0, len(completion.text))]
        if in_json:
            leaves, _ = _leaves(completion.text, _skip(completion.text, 0), ())
        texts = constraint.vocabulary.texts
        spelled = [texts[token_id] for token_id in completion.token_ids]
        data = completion.text.encode()
        thought = 0 if request.thinking is None else completion.reasoning_tokens + request.thinking.automaton.header
        offset = b"".join(spelled).find(data, sum(map(len, spelled[:thought])))
        begins = [0, *accumulate(map(len, spelled))]
        pairs = [Pair("the text", tuple(request.prompt_ids), tuple(completion.token_ids))] if spelled else []
        found: list[tuple[_Leaf, _Place, dict[str, int]]] = []
        options = _options(constraint, plan, completion.text, leaves, in_json)
        for leaf, others_of_leaf in zip(leaves, options, strict=True):
            here = len(completion.text[: leaf.start].encode()) + offset
            end = here + len(completion.text[leaf.start : leaf.end].encode())
            number = in_json and completion.text[leaf.start] in "-0123456789"
            place = _place(spelled, begins, here, end, end + (number and end < begins[-1]))  # what follows ends it
            context = (*request.prompt_ids, *completion.token_ids[: place.first])
            others, answer = {}, b"".join(spelled[completion.reasoning_tokens : place.first])
            for option in others_of_leaf:
                if tokens := _spelt(model, texts, answer, place, option):
                    pair = Pair(option, context, tokens)
                    if pair.length <= model.context_length:
                        others[option] = len(pairs)
                        pairs.append(pair)
            found.append((leaf, place, others))
        scores = Scorer(model).run(pairs) if pairs else []
        return [_field(completion, *one, scores) for one in found]


def _field(
    completion: Completion, leaf: _Leaf, place: _Place, others: dict[str, int], scores: Sequence[Score]
) -> FieldScore:
    best = max(others, key=lambda option: scores[others[option]].sum, default=None)
    written = completion.text[leaf.start : leaf.end]
    tokens = slice(place.first, place.last + 1)
    return FieldScore(
        path=leaf.path,
        start=leaf.start,
        end=leaf.end,
        text=written,
        token_ids=completion.token_ids[tokens],
        logprob=math.fsum(scores[0].logprobs[tokens]) if scores else 0.0,
        other=best,
        other_logprob=None if best is None else scores[others[best]].sum,
    )


def _place(spelled: Sequence[bytes], begins: Sequence[int], here: int, end: int, reach: int) -> _Place:
    """The tokens of the bytes from `here` to `reach`, of which the leaf's own end at `end`."""
    inside = [one for one in range(len(spelled)) if begins[one] < reach and begins[one + 1] > here]
    first, last = (inside[0], inside[-1]) if inside else (0, -1)
    data = b"".join(spelled[first : last + 1])
    return _Place(first, last, data[: here - begins[first]], data[end - begins[first] :])


def _spelt(model: Model, texts: Sequence[bytes], answer: bytes, place: _Place, option: str) -> tuple[int, ...]:
    """The tokens of another value in a leaf's place, as the tokenizer writes them there; () if it cannot.

    Args:
        texts: what each token spells.
        answer: what is before the place.
    """
    wanted = place.before + option.encode() + place.after
    try:
        piece, before = wanted.decode(), answer.decode()
    except UnicodeDecodeError:  # a token begins or ends within a character
        return ()
    head, whole = (model.tokenizer.encode_plain(one) for one in (before, before + piece))
    for tokens in ([whole[len(head) :]] if whole[: len(head)] == head else []) + [model.tokenizer.encode_plain(piece)]:
        if b"".join(texts[one] for one in tokens) == wanted:
            return tuple(tokens)
    return ()


def _skip(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    while text[at] in " \n\r\t":
        at += 1
    return at


def _leaves(text: str, at: int, path: tuple[str | int, ...]) -> tuple[list[_Leaf], int]:
    """The leaves of the value at a place, in order, and the place after it."""
    if text[at] not in "{[":
        _, end = _LEAF.raw_decode(text, at)
        return [_Leaf(path, at, end)], end
    closing, place = {"{": "}", "[": "]"}[text[at]], _skip(text, at + 1)
    parts: dict[str | int, list[_Leaf]] = {}
    while text[place] != closing:
        step: str | int = len(parts)
        if closing == "}":
            step, place = _LEAF.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
            parts.pop(step, None)  # of a name that comes twice the last value counts
        parts[step], place = _leaves(text, place, (*path, step))
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return [leaf for part in parts.values() for leaf in part], place + 1


def _options(
    constraint: Constraint, plan: Plan, text: str, leaves: Sequence[_Leaf], in_json: bool
) -> Iterator[list[str]]:
    """For each leaf the texts of all other values that the type allows in its place, if they are few; else none."""
    automaton = constraint.automaton
    reader = recogniser(plan, constraint.reason or "-") if automaton is None else TableRecogniser(automaton.table)
    state: Any = reader.start(0)
    at = 0
    for leaf in leaves:
        for byte in text[at : leaf.start].encode():
            state = reader.after(state, byte)
        at = leaf.start
        found = {_value(one, in_json): one for one in reversed(_texts(reader, state, in_json))}  # the shortest one last
        written = _value(text[leaf.start : leaf.end], in_json)
        yield [one for value, one in found.items() if value != written] if len(found) <= _MOST else []


def _value(text: str, in_json: bool) -> tuple[bool, Any]:
    """What a text stands for; equal for texts of equal values."""
    value = json.loads(text) if in_json else text
    return isinstance(value, bool), value


def _texts(reader: Recogniser, state: Any, in_json: bool) -> list[str]:
    """The texts that may follow on a state as a leaf, the shortest ones first; too many or none if they are many."""
    found = list[str]()
    front: list[tuple[bytes, Any]] = [(b"", state)]
    while front and len(found) + len(front) <= 4 * _MOST:  # several texts may stand for one value, as 1 and 1.0
        longer = list[tuple[bytes, Any]]()
        for begun, one in front:
            further = reader.further(one)
            if in_json and begun and begun[:1] in b"-0123456789":
                ended = reader.whole(one) or any(byte not in _IN_NUMBERS for byte, _ in further)
                further = [(byte, after) for byte, after in further if byte in _IN_NUMBERS]
            elif in_json:
                ended = _is_whole(begun)
                further = [] if ended else [(byte, after) for byte, after in further if begun or byte in _FIRST]
            else:
                ended = reader.whole(one)
            if ended:
                found.append(begun.decode())
            longer += [(begun + bytes([byte]), after) for byte, after in further]
        front = longer
    return [] if front else found


def _is_whole(begun: bytes) -> bool:
    """Whether a beginning of JSON is a whole string, true, false or null."""
    try:
        return not isinstance(json.loads(begun), dict | list)
    except ValueError:
        return False
