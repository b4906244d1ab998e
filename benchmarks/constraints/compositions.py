"""Whether random compositions of types are held to and read as they should be, on both engines.

    python -m benchmarks.constraints.compositions --count 2000

Each composition is compiled for the demo model and for a random one. Random texts of its letters are read: the value
must be that of a brute-force splitter, which tries all ways in the order that docs/composed_types.md gives. Texts are
made with every limit from `least_tokens` up, alone, in a batch, in the reverse order, streamed, and on a virtual
cuda:1 without a host sync; they must be whole, and equal.
"""

import argparse
import itertools
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.random_model import save_random_model
from gen.constraints.output_types import Composed, Either, Grammar, Regex, Repeat, Sequence, Text
from gen.models.base import Model

_LETTERS = "ab,1<"
_REGEXES = ("a+", "[ab]*", "a(b|,)", "<|ab", "a?b?", "(ab)*,")
_NUMBER = gen.json_schema({"type": "integer", "minimum": 0, "maximum": 99})
_NESTED = gen.grammar('start: "<" start? ">"')


def random_type(rng: random.Random, depth: int = 3, *, on_host: float = 0.0) -> Any:
    """A random output type, or a string.

    Args:
        on_host: how often a part is one that only the host engine has.
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
    """All ways to read a type from a place of a text on, the best first: where each ends, and its value."""
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
    """The value of a text that is one of a type's, in a tuple."""
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
    """A random text of a type; None where chance gives none."""
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
    """Whether a type is refused: a part that is repeated may be empty, or two branches are equal."""
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
    """Raise an AssertionError unless a type's texts are read as by brute force; how many texts were read."""
    constraint = gen.compile(model, kind)
    texts = {text for _ in range(4) if (text := written(kind, rng)) is not None and len(text) < 20}
    texts |= {_random_text(rng, _LETTERS + "<>") for _ in range(3)}
    for text in texts:
        every = [value for end, value in itertools.islice(ways(kind, text, 0), 20_000) if end == len(text)]
        assert constraint.accepts(text) is bool(every), (kind, text)
        if constraint.automaton is not None:
            assert constraint.automaton.accepts(text) is bool(every), (kind, text)
        elif constraint.grammar is not None and constraint.grammar.accepts(text):
            assert every, (kind, text)
        if every:
            assert constraint.read(text) == every[0], (kind, text, constraint.read(text), every[0])
    return len(texts)


def check_generating(model: Model, other: Model | None, kind: Any, seed: int) -> int:
    """Raise an AssertionError unless the texts of a type are whole at every limit, and the same whatever runs beside.

    Args:
        other: the same model on a virtual device, where no step may wait; None to leave that out.
    Returns:
        How many texts were made.
    """
    least = gen.compile(model, kind).least_tokens
    assert least is not None
    limits = [max(least, 1), max(least, 1) + 1, least + 3, least + 12]
    kinds = [kind] * len(limits)
    alone = [_alone(model, kind, limit, seed) for limit in limits]
    batch = _batch(model, kinds, limits, seed)
    turned = _batch(model, kinds, limits[::-1], seed)[::-1]
    for limit, text, one, two in zip(limits, alone, batch, turned, strict=True):
        assert text == one.text == two.text, (kind, limit, text, one.text, two.text)
        found = next((value for end, value in ways(kind, text, 0) if end == len(text)), None)
        assert found is not None and one.value == found, (kind, text, one.value)
    if other is not None:
        automaton = gen.compile(other, kind).automaton
        assert automaton is not None
        automaton.place(other.placement.logits_device)  # which waits once, for how many rows differ
        with gen.testing.no_host_sync(count=True) as report:
            made = _batch(other, kinds, limits, seed)
        assert [one.text for one in made] == alone, kind
        assert report.count <= 2, report  # of a call, none a token
    return len(limits)


def _batch(model: Model, kinds: list[Any], limits: list[int], seed: int) -> list[gen.Completion]:
    """Texts that are made together."""
    prompts = ["x"] * len(kinds)
    return gen.generate(model, prompts, kinds, max_new_tokens=limits, seed=seed, shorten=True, details=True)


def _alone(model: Model, kind: Any, limit: int, seed: int) -> str:
    """A text that is made alone, streamed."""
    return "".join(gen.stream(model, "x", kind, max_new_tokens=limit, seed=seed, shorten=True))


def compositions(count: int, seed: int, *, on_host: float = 0.0) -> Iterator[Any]:
    """Random compositions that are not refused."""
    rng = random.Random(seed)
    while count:
        kind = random_type(rng, on_host=on_host)
        if isinstance(kind, Composed) and not refused(kind):
            count -= 1
            yield kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--generate", type=int, help="how many of them write texts; all by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, gen.testing.virtual_gpus(2):
        save_random_model(Path(folder), 1000)
        pairs = [(gen.load(name, device="cpu"), gen.load(name, device="cuda:1")) for name in ("demo", folder)]
        read = made = on_host = 0
        rng = random.Random(arguments.seed)
        for number, kind in enumerate(compositions(arguments.count, arguments.seed)):
            read += check_reading(pairs[0][0], kind, rng)
            model, other = pairs[number % 2]
            wanted = arguments.generate is None or number < arguments.generate
            if wanted and gen.compile(model, kind).engine == "device":
                made += check_generating(model, other, kind, number)
            if number % 100 == 99:
                print(f"{number + 1} compositions", file=sys.stderr)
        for kind in compositions(arguments.count, arguments.seed + 1, on_host=0.2):
            try:
                read += check_reading(pairs[0][0], kind, rng)
            except gen.ConstraintError:
                continue  # it cannot be told where a part ends
            on_host += gen.compile(pairs[0][0], kind).engine == "host"
    print(f"{arguments.count} compositions on the device, {on_host} on the host engine: {read} texts read, {made} made")


if __name__ == "__main__":
    main()
