"""What compiles, on which engine, and the text of a seed depend neither on the machine's speed nor on what was compiled
before."""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import pytest

import gen
from gen.constraints.automata.limits import TooLarge
from gen.constraints.schema import schema_table

T = TypeVar("T")
STRINGS = {f"s{n}": {"type": "string", "maxLength": 100} for n in range(12)}
SCHEMAS: dict[str, Any] = {  # near the bound of work, above it, and far below it
    "12 strings of 100 characters": {"type": "object", "properties": STRINGS},
    "alternatives that are merged": {
        "anyOf": [{"allOf": [{"minLength": n}, {"maxLength": n + 40}]} for n in range(40)]
    },
    "texts with letters far from their end": {"type": "string", "pattern": "^(a|b)*a(a|b){16}$"},
    "a number": {"type": "integer", "minimum": -7, "maximum": 1234},
}


def engine_of(schema: Any) -> str:
    """What comes of a schema: how many states its automaton has, or why there is none."""
    try:
        return f"{len(schema_table(schema, closed=True, whitespace='line').next)} states"
    except TooLarge as error:
        return str(error)


def same_by_a_fast_clock(find: Callable[[], T], monkeypatch: pytest.MonkeyPatch) -> T:
    before, ticks = find(), count(0, 100)
    for clock in ("thread_time", "process_time", "perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))  # each look is 100 seconds after the last one
    after = find()
    monkeypatch.undo()
    assert after == before
    return after


def test_neither_a_faster_clock_nor_what_was_compiled_before_changes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from tests.constraints.test_no_clock import SCHEMAS, engine_of\n"
        "print('\\n'.join(map(engine_of, SCHEMAS.values())))"
    )
    cold = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    warm = [engine_of(schema) for schema in reversed(SCHEMAS.values())][::-1]
    found = same_by_a_fast_clock(lambda: [*map(engine_of, SCHEMAS.values())], monkeypatch)
    assert cold.stdout.splitlines() == warm == found
    assert sum("states" in said and "more" not in said for said in found) >= 2


def test_neither_engine_nor_text_of_a_type_depends_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    recursive = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
    types = [gen.json_schema(SCHEMAS["a number"]), gen.json_schema(recursive)]

    def texts() -> list[tuple[str, str]]:
        model, made = gen.load("demo"), list[tuple[str, str]]()  # its tokenizer has kept no types
        for number, each in enumerate(types):
            kind = gen.compile(model, each)
            done = gen.generate(model, "As JSON:", kind, seed=number, max_new_tokens=30, shorten=True, details=True)
            made.append((kind.engine, done.text))
        return made

    assert {engine for engine, _ in same_by_a_fast_clock(texts, monkeypatch)} == {"device", "host"}
