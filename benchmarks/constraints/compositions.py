"""Whether both engines constrain texts to random compositions of types, and read them, as they should.

A case is twenty compositions, for the demo model or for a random one by turns, and twenty with parts for the host
engine. Random texts of its letters are read: the value
must be that of a brute-force splitter, which tries all ways in the order that docs/composed_types.md gives. Texts are
made with every limit from `least_tokens` up to one more than where the text ends by itself, or to 32 more if it does
not: in batches of many compositions, in the reverse order, some of them alone and streamed, and all on a virtual cuda:1
without a host sync. They must be whole as the splitter sees them, and equal in all these ways. A text that has ended by
itself must be the text of the largest limit.
"""

import itertools
import random
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from transformers import AutoTokenizer

import gen
import virtual_gpus
from benchmarks.random_model import save_random_model
from gen.constraints.output_types import Composed, Either, Grammar, Regex, Repeat, Sequence, Text
from gen.models.base import Model

_LETTERS = "ab,1<"
_REGEXES = ("a+", "[ab]*", "a(b|,)", "<|ab", "a?b?", "(ab)*,")
_NUMBER = gen.json_schema({"type": "integer", "minimum": 0, "maximum": 99})
_NESTED = gen.grammar('start: "<" start? ">"')
BEYOND = 32  # tokens at most from the least limit to the largest
_ALONE = 4  # texts of a batch that are made alone too
_TOGETHER = 20  # compositions that write their texts in one batch


def random_type(rng: random.Random, depth: int = 3, *, on_host: float = 0.0) -> Any:
    """A random output type, or a string.

    Args:
        on_host: the share of parts that only the host engine supports.
    """
    kinds = ["word", "word", "text", "regex", "int", "choice"]
    kind = rng.choice([*kinds, *(["sequence", "sequence", "either", "repeat"] * 2 if depth else [])])
    if rng.random() < on_host:
        return _NESTED
    if kind == "word":
        return _word(rng)
    if kind == "text":
        without = [_word(rng) for _ in range(rng.randrange(3))]
        return gen.text(without, rng.choice([None, None, rng.randrange(1, 6)]))
    if kind == "regex":
        return gen.regex(rng.choice(_REGEXES))
    if kind == "int":
        return _NUMBER
    if kind == "choice":
        return gen.choice({_word(rng) for _ in range(3)})
    parts = [random_type(rng, depth - 1, on_host=on_host) for _ in range(rng.randrange(1, 4))]
    if kind == "sequence":
        return gen.sequence(*parts)
    if kind == "either":
        return gen.either(*parts)
    least = rng.randrange(3)
    most = rng.choice([None, least + rng.randrange(3)])
    return gen.repeat(parts[0], rng.choice(["", ",", "ab"]), least, None if most is None else max(most, 1))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(1, 4)))


def ways(kind: Any, text: str, begin: int) -> Iterator[tuple[int, Any]]:
    """All ways to read a type from a given place in a text, the best first: where each ends, and its value."""
    if isinstance(kind, str):
        if text.startswith(kind, begin):
            yield begin + len(kind), kind
    elif isinstance(kind, Sequence):
        yield from _in_order(kind.parts, text, begin)
    elif isinstance(kind, Either):
        for branch in kind.branches:
            yield from ways(branch, text, begin)
    elif isinstance(kind, Repeat):
        yield from _repeated(kind, text, begin, 0)
    else:
        for end in range(len(text), begin - 1, -1):
            if (value := _leaf(kind, text[begin:end])) is not None:
                yield end, value[0]


def _in_order(parts: tuple[Any, ...], text: str, begin: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    if not parts:
        yield begin, ()
        return
    for place, first in ways(parts[0], text, begin):
        for end, others in _in_order(parts[1:], text, place):
            yield end, (first, *others)


def _repeated(kind: Repeat, text: str, begin: int, count: int) -> Iterator[tuple[int, list[Any]]]:
    if kind.most is None or count < kind.most:
        separator = kind.separator if count else ""
        if text.startswith(separator, begin):
            for place, first in ways(kind.part, text, begin + len(separator)):
                for end, others in _repeated(kind, text, place, count + 1):
                    yield end, [first, *others]
    if count >= kind.least:
        yield begin, []


def _leaf(kind: Any, text: str) -> tuple[Any] | None:
    """The value of a text of this type, in a tuple; None for any other text."""
    if isinstance(kind, Text):
        fits = len(text) <= (len(text) if kind.max_chars is None else kind.max_chars)
        return (text,) if fits and not any(one in text for one in kind.without) else None
    if isinstance(kind, Regex):
        return (text,) if re.fullmatch(kind.pattern, text) else None
    if isinstance(kind, Grammar):
        half = len(text) // 2
        return (text,) if half and text == "<" * half + ">" * half else None
    if kind is _NUMBER:
        return (int(text),) if re.fullmatch("[1-9]?[0-9]", text) else None
    return (kind.options[text],) if text in kind.options else None


def written(kind: Any, rng: random.Random) -> str | None:
    """A random text of a type; None if the random choices lead to none."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, Either):
        return written(rng.choice(kind.branches), rng)
    parts: list[Any]
    if isinstance(kind, Sequence):
        parts = [*kind.parts]
    elif isinstance(kind, Repeat):
        most = kind.least + 2 if kind.most is None else kind.most
        count = rng.randint(kind.least, most)
        parts = [part for _ in range(count) for part in (kind.separator, kind.part)][1:]
    else:
        tries = [_random_text(rng, _LETTERS + (">" if isinstance(kind, Grammar) else "")) for _ in range(60)]
        return next((one for one in tries if _leaf(kind, one) is not None), None)
    made = [written(part, rng) for part in parts]
    return None if None in made else "".join(one for one in made if one is not None)


def _random_text(rng: random.Random, letters: str) -> str:
    return "".join(rng.choices(letters, k=rng.choice([0, 1, 1, 2, 2, 3, 4])))


def may_be_empty(kind: Any) -> bool:
    """Whether a text of a type may be empty."""
    return any(end == 0 for end, _ in ways(kind, "", 0))


def refused(kind: Any) -> bool:
    """Whether a type is refused: it repeats a part that may be empty, or two branches are equal."""
    if isinstance(kind, Repeat):
        return refused(kind.part) or may_be_empty(kind.part)
    if isinstance(kind, Sequence):
        return any(map(refused, kind.parts))
    if isinstance(kind, Either):
        return any(map(refused, kind.branches)) or any(
            one == other for one, other in itertools.combinations(kind.branches, 2)
        )
    return False


def check_reading(model: Model, kind: Any, rng: random.Random) -> int:
    """Raise an AssertionError unless a type's texts are read as by brute force. Returns how many were read."""
    constraint = gen.compile(model, kind)
    texts = {text for _ in range(4) if (text := written(kind, rng)) is not None and len(text) < 20}
    texts |= {_random_text(rng, _LETTERS + "<>") for _ in range(3)}
    for text in texts:
        every = [value for end, value in itertools.islice(ways(kind, text, 0), 20_000) if end == len(text)]
        assert constraint.accepts(text) is bool(every), (kind, text)
        if constraint.automaton is not None:
            assert constraint.automaton.accepts(text.encode()) is bool(every), (kind, text)
        elif constraint.grammar is not None and constraint.grammar.accepts(text.encode()):
            assert every, (kind, text)
        if every:
            assert constraint.read(text) == every[0], (kind, text, constraint.read(text), every[0])
    return len(texts)


class Made(NamedTuple):
    """How many texts were made, and for how many types at least one text ended by itself."""

    texts: int
    ended: int


def check_generating(model: Model, other: Model | None, types: Iterable[Any], seed: int) -> Made:
    """Raise an AssertionError unless texts are whole at every limit, and the same whatever runs beside them.

    Args:
        other: the same model on a virtual device, where no step may wait; None to leave that out.
        types: for the device engine.
    """
    kinds = [(kind, gen.compile(model, kind).least_tokens or 0) for kind in types]
    longest = _together(model, [(kind, least + BEYOND) for kind, least in kinds], seed)
    asked, free = [], []
    for (kind, least), text in zip(kinds, longest, strict=True):
        end = BEYOND if text.finish_reason == "length" else min(BEYOND, max(1, len(text.token_ids) + 1 - least))
        asked += [(kind, limit) for limit in range(least, least + end + 1)]
        free += [text] * (end + 1)
    made = _together(model, asked, seed)
    turned = _together(model, asked[::-1], seed)[::-1]
    for (kind, limit), one, two, large in zip(asked, made, turned, free, strict=True):
        assert one.text == two.text, (kind, limit, one.text, two.text)
        value = next((value for end, value in ways(kind, one.text, 0) if end == len(one.text)), None)
        assert value is not None and one.value == value, (kind, limit, one.text, one.value)
        if one.finish_reason != "length":  # it has ended by itself, so no larger limit changes it
            assert (one.text, one.finish_reason) == (large.text, large.finish_reason), (kind, limit)
    for place in random.Random(seed).sample(range(len(asked)), min(_ALONE, len(asked))):
        kind, limit = asked[place]
        assert _alone(model, kind, limit, seed) == made[place].text, (kind, limit)
    if other is not None:
        for kind, _ in kinds:
            automaton = gen.compile(other, kind).automaton
            assert automaton is not None
            automaton.place(other.placement.logits_device)  # waits once, for the number of rows that differ
        with virtual_gpus.no_host_sync(count=True) as report:
            there = _together(other, asked, seed)
        assert [one.text for one in there] == [one.text for one in made]
        assert report.count <= 2, report  # for the call, none for a token
    return Made(len(asked), sum(text.finish_reason != "length" for text in longest))


def _settings(model: Model, seed: int) -> dict[str, Any]:
    """How texts are drawn: letters and ends of texts are likely, so texts of all forms occur, and they end."""
    ends = [*model.eos_token_ids] or [model.vocab_size - 1]
    often = {token_id: 4.0 for letter in _LETTERS for token_id in model.tokenizer.encode_plain(letter)[-1:]}
    sampler = gen.samplers.multinomial(logit_bias=often | dict.fromkeys(ends, 4.0))
    return {"sampler": sampler, "eos_token_id": ends, "seed": seed, "shorten": True}


def _together(model: Model, asked: list[tuple[Any, int]], seed: int) -> list[gen.Completion]:
    kinds, limits = zip(*asked, strict=True)
    prompts, settings = ["x"] * len(kinds), _settings(model, seed)
    made: list[gen.Completion] = gen.generate(model, prompts, [*kinds], max_new_tokens=limits, details=True, **settings)
    return made


def _alone(model: Model, kind: Any, limit: int, seed: int) -> str:
    """A text that is made alone, as a stream."""
    return "".join(gen.stream(model, "x", kind, max_new_tokens=limit, **_settings(model, seed)))


def compositions(count: int, seed: int, *, on_host: float = 0.0) -> Iterator[Any]:
    """Random compositions that are not refused."""
    rng = random.Random(seed)
    while count:
        kind = random_type(rng, on_host=on_host)
        if isinstance(kind, Composed) and not refused(kind):
            count -= 1
            yield kind


@cache
def _loaded(name: str) -> tuple[Model, Model]:
    """A model on the CPU and on cuda:1; "random" is one whose last token ends texts."""
    with TemporaryDirectory() as folder:
        if name == "random":
            save_random_model(Path(folder), 1000)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            tokenizer.add_special_tokens({"eos_token": tokenizer.convert_ids_to_tokens(999)})
            tokenizer.save_pretrained(folder)
            name = folder
        return gen.load(name, device="cpu"), gen.load(name, device="cuda:1")


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """The demo model, or the given one, and a random one."""

    def check(number: int) -> tuple[Counter[str], list[str]]:
        rng, counts = random.Random(number), Counter[str](compositions=_TOGETHER)
        with virtual_gpus.virtual_gpus(2):
            demo, _ = pair = _loaded(given.model or "demo")
            model, other = _loaded("random") if number % 2 else pair
            kinds = [*compositions(_TOGETHER, number)]
            counts["texts read"] = sum(check_reading(demo, kind, rng) for kind in kinds)
            on_device = [kind for kind in kinds if gen.compile(model, kind).engine == "device"]
            made = check_generating(model, other, on_device, number)
            counts += Counter({"on the device": len(on_device), "texts made": made.texts})
            counts["of types that ended one"] = made.ended
        for kind in compositions(_TOGETHER, number, on_host=0.2):
            try:
                counts["texts read"] += check_reading(demo, kind, rng)
            except gen.ConstraintError:
                continue  # the engine cannot tell where a part ends
            counts["on the host"] += gen.compile(demo, kind).engine == "host"
        return counts, []

    return check
