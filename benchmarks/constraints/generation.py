"""What a constraint costs in generation: tables of the vocabulary, compiling, the first token, each step.

    python -m benchmarks.constraints.generation --vocab 49152 131072
    python -m benchmarks.constraints.generation --types "30 small tools" "30 large tools" --room 390 6
    python -m benchmarks.constraints.generation --types "30 strings" "2 lists of 20 strings" --vocab 262144 --rounds 1

The models of --vocab are small Llamas with random weights. Their steps are short, so that added time shows. "tables"
are the vocabulary's, made once. "compile" and "first token" are of types that were not compiled before, when the tables
exist: each has names of its own. "step" is the time of calls with a type divided by that of a call without one that
makes as many tokens, and that runs between them. --room is how many tokens more than a type needs the texts may have;
with few, the limit may change any of them. Small tools take a string, an integer, one of three options and an object
with a field; large ones a bounded integer, a date, a string of at most 64 characters, one of four options, an object
with two fields and a list of at most five integers. Times are CPU times of the thread that calls, on one thread,
medians over rounds. `benchmarks.outlines.records` compares whole calls with those of Outlines.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

import gen
from benchmarks.measuring import publish, read_arguments, span
from benchmarks.random_model import load_random_model
from gen.models.base import Model

PROMPT = "Describe Ada Lovelace as JSON.\n"
Schema = dict[str, Any]
SIX: Schema = {
    "name": {"type": "string", "maxLength": 40},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"type": "string"},
    "city": {"type": "string", "maxLength": 40},
    "married": {"type": "boolean"},
    "kind": {"enum": ["scientist", "artist", "other"]},
}
SMALL: Schema = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F", "K"]},
    "at": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}
LARGE: Schema = {
    "days": {"type": "integer", "minimum": 1, "maximum": 366},
    "from": {"type": "string", "format": "date"},
    "city": {"type": "string", "maxLength": 64},
    "unit": {"enum": ["C", "F", "K", "R"]},
    "at": {
        "type": "object",
        "properties": {"zone": {"type": "string", "maxLength": 16}, "summer": {"type": "boolean"}},
        "required": ["zone", "summer"],
    },
    "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 5},
}
_STRING: Schema = {"type": "string", "maxLength": 200}
_LIST: Schema = {"type": "array", "items": _STRING, "minItems": 20, "maxItems": 20}
OBJECTS: dict[str, Schema] = {
    "a string": {"text": {"type": "string"}},
    "six fields": SIX,
    "30 strings": {f"field_{number}": _STRING for number in range(30)},
    "2 lists of 20 strings": {"one": _LIST, "other": _LIST},
}
TOOLS = {"30 small tools": SMALL, "30 large tools": LARGE}


def main() -> None:
    given = read_arguments(
        __doc__,
        types={"nargs": "+", "choices": [*OBJECTS, *TOOLS], "default": ["a string", "six fields"]},
        vocab=[49152],
        batch=8,
        room=([60], "tokens more than a type needs"),
        rounds=7,
    )
    publish(given, rows=[row for vocab in given.vocab for row in measured(vocab, given)])


def measured(vocab: int, given: Namespace) -> list[dict[str, object]]:
    """A row for each type."""
    tables = []
    for _ in range(3):
        model = load_random_model(vocab)
        gen.generate(model, PROMPT, max_new_tokens=2)
        tables.append(timed(gen.compile, model, bool)[1])
    rows = []
    for name in given.types:
        compiling = [timed(gen.compile, model, kind(name, number)) for number in range(given.rounds)]
        first = [timed(_first_piece, model, kind(name, number + given.rounds))[1] for number in range(3)]
        constraint, seconds = compiling[-1][0], [took for _, took in compiling]
        row: dict[str, object] = {
            "vocabulary": vocab,
            "type": name,
            "engine": constraint.engine,
            "states": constraint.states,
            "tables s": round(median(tables), 2),
            "compile s": round(median(seconds), 3),
            "slowest s": round(max(seconds), 3),
            "first token s": round(median(first), 3),
        }
        for room in given.room:
            limit = (constraint.least_tokens or 0) + room
            ratios, tokens = step_ratios(model, constraint, [PROMPT] * given.batch, limit, given.rounds)
            row[f"step with / without, room for {room}"] = span("median", ratios, ends=("least", "most"))
            row[f"tokens, room for {room}"] = tokens
        rows.append(row)
        print(row, flush=True)
    return rows


def kind(name: str, number: int) -> Any:
    """A type by its name, whose parts have names that no other number gives them."""
    if name in TOOLS:
        return gen.tool_calls(tools(TOOLS[name], 30, 30 * number), choice="required")
    return gen.json_schema(_object(OBJECTS[name], number))


def tools(properties: Schema, count: int, first: int = 0) -> list[dict[str, Any]]:
    """`count` tools that take these arguments, each with names of its own."""
    return [
        {"type": "function", "function": {"name": f"tool_{one}", "parameters": _object(properties, one)}}
        for one in range(first, first + count)
    ]


def _object(properties: Schema, number: int) -> Schema:
    named = {f"{name}_{number}": schema for name, schema in properties.items()}
    return {"type": "object", "properties": named, "required": [*named]}


def timed(call: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    begin = time.thread_time()
    result = call(*arguments, **settings)
    return result, time.thread_time() - begin


def _first_piece(model: Model, kind: Any) -> str:
    return next(iter(gen.stream(model, PROMPT, kind, max_new_tokens=2000, seed=0)))


def step_ratios(
    model: Model, kind: Any, prompts: list[str], limit: int, rounds: int, *, warm: int = 3
) -> tuple[list[float], int]:
    """The time of a step with a type over one without, for each round; and how many steps.

    A call without a type makes as many tokens, and runs between two with it, since the machine's speed drifts. No step
    reads drafts: the cost of a plain step is asked.

    Args:
        warm: rounds before the others, in which steps are recorded, with and without room.
    """
    settings: Any = {"sampler": gen.samplers.multinomial(top_k=50, top_p=0.95), "details": True, "speculate": False}
    ratios = []
    for seed in range(rounds + warm):
        typed = {"max_new_tokens": limit, "seed": seed, "shorten": True, "errors": "return", **settings}
        made, before = timed(gen.generate, model, prompts, kind, **typed)
        longest = max(len(getattr(one, "completion", one).token_ids) for one in made)  # errors have what was cut
        _, without = timed(gen.generate, model, prompts, max_new_tokens=longest, seed=seed, **settings)
        _, after = timed(gen.generate, model, prompts, kind, **typed)
        if seed >= warm:
            ratios.append((before + after) / 2 / without)
    return ratios, longest


if __name__ == "__main__":
    main()
