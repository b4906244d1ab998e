"""What compiles, and on which engine, depends neither on the machine's speed nor on what was compiled before."""

import subprocess
import sys
import time
from itertools import count
from typing import Any

import pytest

from gen.constraints.automata.limits import TooLarge
from gen.constraints.schema import schema_table

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


def test_neither_a_faster_clock_nor_what_was_compiled_before_changes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from tests.constraints.test_no_clock import SCHEMAS, engine_of\n"
        "print('\\n'.join(map(engine_of, SCHEMAS.values())))"
    )
    cold = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    warm = [engine_of(schema) for schema in reversed(SCHEMAS.values())][::-1]
    ticks = count(0, 100)
    for clock in ("thread_time", "process_time", "perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))  # each look is 100 seconds after the last one
    found = [*map(engine_of, SCHEMAS.values())]
    monkeypatch.undo()
    assert cold.stdout.splitlines() == warm == found
    assert sum("states" in said and "more" not in said for said in found) >= 2
