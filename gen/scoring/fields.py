"""How sure a model was of each leaf of a value: how likely the leaf was, and the best other value in its place.

Example: the text is {"happy": true}, with the tokens `{"`, `happy`, `": `, `true` and `}`. Its only leaf is `true`, at
("happy",), and the only other value in its place is `false`: both are scored after `{"happy": `.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from gen.completions import Completion, FieldScore
from gen.constraints.composing.trees import Plan
from gen.errors import ArgumentError
from gen.models.base import Model
from gen.requests.request import Request
from gen.runtime.isolation import isolated
from gen.scoring.pairs import Pair
from gen.scoring.scorer import Score, Scorer

if TYPE_CHECKING:
    from gen.constraints.schema.references import References  # with what compiles types, which other calls do not need

_MOST = 100  # values in the place of one leaf
_LEAF = json.JSONDecoder()


class _Leaf(NamedTuple):
    """A leaf of a value, and which characters of the text it is; `options` are the texts of all values there."""

    path: tuple[str | int, ...]
    start: int
    end: int
    options: Sequence[str]


class _Place(NamedTuple):
    """Which tokens have a leaf, and what else they have: bytes before and after it."""

    first: int
    last: int
    before: bytes
    after: bytes


class FieldScorer:
    """Scores the leaves of a call's values, when they are asked for. It does not keep the model."""

    def __init__(self, model: Model) -> None:
        self._model = ref(model)

    @isolated
    def scores(self, request: Request, completion: Completion) -> list[FieldScore]:
        """See `Completion.fields`."""
        model, constraint = self._model(), request.constraint
        if model is None:
            raise ArgumentError("no fields: the model is gone, and it has to read the text again; ask before.")
        plan = None if constraint is None else constraint.tree
        if constraint is None or not isinstance(plan, Plan) or (leaves := _leaves_of(plan, completion.text)) is None:
            raise ArgumentError(
                "fields are those of a value whose text is JSON, a date, another scalar, or one of some options."
            )
        if request.inputs:
            raise ArgumentError("no fields: the prompt has images, and scores are of texts alone.")
        texts = constraint.vocabulary.texts
        spelled = [texts[token_id] for token_id in completion.token_ids]
        data = completion.text.encode()
        offset = b"".join(spelled).find(data, sum(map(len, spelled[: completion.reasoning_tokens])))
        begins = [0, *accumulate(map(len, spelled))]
        pairs = [Pair("the text", tuple(request.prompt_ids), tuple(completion.token_ids))] if spelled else []
        found: list[tuple[_Leaf, _Place, dict[str, int]]] = []
        for leaf in leaves:
            here = len(completion.text[: leaf.start].encode()) + offset
            end = here + len(completion.text[leaf.start : leaf.end].encode())
            written = completion.text[leaf.start : leaf.end]
            reach = end + (written[:1] in "-0123456789" and end < begins[-1])  # a number ends with what follows it
            place = _place(spelled, begins, here, end, reach)
            context = (*request.prompt_ids, *completion.token_ids[: place.first])
            others, answer = {}, b"".join(spelled[completion.reasoning_tokens : place.first])
            for option in leaf.options:
                if option != written and (tokens := _spelt(model, texts, answer, place, option)):
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


def _leaves_of(plan: Plan, text: str) -> list[_Leaf] | None:
    """The leaves of a text; None for texts that have none."""
    from gen.constraints.schema.references import References

    key: Any = plan.key  # a tuple
    kind, given = key[0], key[1:]
    if kind == "choice":
        return [_Leaf((), 0, len(text), given)]
    if kind == "text":
        schema = json.loads(given[0])
        return [_Leaf((), 0, len(text), [json.loads(one) for one in _options([schema], References(schema))])]
    if plan.schema is None:
        return None
    schema = json.loads(plan.schema)
    return [leaf for leaf, _ in _walk(text, _skip(text, 0), (), [schema], References(schema)) if leaf is not None]


def _skip(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    while text[at] in " \n\r\t":
        at += 1
    return at


def _walk(
    text: str, at: int, path: tuple[str | int, ...], schemas: Sequence[Any], root: "References"
) -> Iterator[tuple[_Leaf | None, int]]:
    """The leaves of the value at a place, in order; the last thing is None with the place after the value."""
    if text[at] not in "{[":
        _, end = _LEAF.raw_decode(text, at)
        yield _Leaf(path, at, end, _options(schemas, root)), end
        yield None, end
        return
    closing, number, place = {"{": "}", "[": "]"}[text[at]], 0, _skip(text, at + 1)
    while text[place] != closing:
        step: str | int = number
        if closing == "}":
            step, place = _LEAF.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        for leaf, end in _walk(text, place, (*path, step), root.below(schemas, step), root):
            place = end
            if leaf is not None:
                yield leaf, end
        place, number = _skip(text, place), number + 1
        if text[place] == ",":
            place = _skip(text, place + 1)
    yield None, place + 1


def _options(schemas: Sequence[Any], root: "References") -> list[str]:
    """The texts of all values of some schemas, if these are few scalars; else none."""
    values: list[Any] = []
    for schema in root.branches(schemas):
        kind = schema.get("type")
        if "const" in schema or "enum" in schema:
            values += schema.get("enum", [schema.get("const")])
        elif kind == "boolean":
            values += [True, False]
        elif kind == "null":
            values.append(None)
        elif kind == "integer" and len(numbers := _numbers(schema)) <= _MOST:
            values += numbers
        elif kind not in ("object", "array"):
            return []
    texts = [json.dumps(one, ensure_ascii=False) for one in values if not isinstance(one, dict | list)]
    return [*dict.fromkeys(texts)] if len(texts) <= _MOST else []


def _numbers(schema: Any) -> range:
    """The whole numbers between a schema's bounds; too many if it has no two of them."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    if not math.isfinite(min(high, below) - max(low, above)):
        return range(_MOST + 1)
    low = low if low > above else math.floor(above) + 1
    high = high if high < below else math.ceil(below) - 1
    step = schema.get("multipleOf", 1)
    low = math.ceil(low)
    return range(low + -low % step, math.floor(high) + 1, step) if isinstance(step, int) else range(_MOST + 1)
