"""What calls of tools cost: compiling 30 of them, and each step.

    python -m benchmarks.constraints.tools --vocab 49152

"small" tools take a string, an integer, one of three options and an object with a field; "large" ones a bounded
integer, a date, a string of at most 64 characters, one of four options, an object with two fields and a list of at most
five integers. "compile s" is the CPU time of the thread for a type that was not compiled before, when the vocabulary's
tables exist: the median and the slowest of some rounds. "step" is the time of calls in which the model writes calls of
these tools, divided by that of a call without a type that makes as many tokens, and that runs between them. "near" is
the same with a limit that leaves a tool call hardly more tokens than it needs, so that the limit may change any of
them.
"""

import statistics
from typing import Any

import gen
from benchmarks.constraints.generation import step_ratios, timed
from benchmarks.measuring import publish, read_arguments
from benchmarks.random_model import load_random_model
from gen.models.base import Model

SMALL = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F", "K"]},
    "at": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}
LARGE = {
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


def main() -> None:
    given = read_arguments(
        __doc__,
        vocab=[49152],
        batch=8,
        new_tokens=512,
        near=(128, 'the limit of new tokens for "near"'),
        rounds=7,
    )
    rows = []
    for vocab in given.vocab:
        model = load_random_model(vocab)
        gen.compile(model, bool)  # makes the tables of the vocabulary
        for name, properties in (("small", SMALL), ("large", LARGE)):
            row = {"vocabulary": vocab, "tools": name, **_compiled(model, properties, given.rounds)}
            kind = gen.compile(model, gen.tool_calls(tools(properties, 30), choice="required"))
            for column, limit in (("step with / without", given.new_tokens), ("near", given.near)):
                ratios, *_ = step_ratios(model, kind, ["Call a tool.\n"] * given.batch, limit, given.rounds)
                row[column] = round(statistics.median(ratios), 3)
            rows.append(row)
    publish(given, rows=rows)


def tools(properties: dict[str, Any], number: int, first: int = 0) -> list[dict[str, Any]]:
    """`number` tools that take these arguments, each with names of its own."""
    made = []
    for one in range(first, first + number):
        named = {f"{name}_{one}": schema for name, schema in properties.items()}
        schema = {"type": "object", "properties": named, "required": [*named]}
        made.append({"type": "function", "function": {"name": f"tool_{one}", "parameters": schema}})
    return made


def _compiled(model: Model, properties: dict[str, Any], rounds: int) -> dict[str, Any]:
    """How long 30 tools take to compile, each round with new names."""
    seconds = []
    for number in range(rounds):
        made, took = timed(gen.compile, model, gen.tool_calls(tools(properties, 30, 100 * number)))
        seconds.append(took)
    return {
        "engine": made.engine,
        "states": made.states,
        "compile s": round(statistics.median(seconds), 3),
        "slowest s": round(max(seconds), 3),
    }


if __name__ == "__main__":
    main()
