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

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.constraints.generation import _timed as timed
from benchmarks.measuring import machine, markdown_table, write_json
from benchmarks.random_model import save_random_model
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
    arguments = _arguments()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "rows": []}
    for vocab in arguments.vocab:
        with tempfile.TemporaryDirectory() as folder:
            save_random_model(Path(folder), vocab)
            model = gen.load(folder, device="cpu")
        gen.compile(model, bool)  # makes the tables of the vocabulary
        for name, properties in (("small", SMALL), ("large", LARGE)):
            row = {"vocabulary": vocab, "tools": name, **_compiled(model, properties, arguments.rounds)}
            report["rows"].append(row)
            for column, limit in (("step with / without", arguments.new_tokens), ("near", arguments.near)):
                row[column] = round(statistics.median(_steps(model, properties, arguments, limit)), 3)
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(report["rows"]))
    if arguments.json:
        write_json(arguments.json, report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="*", default=[49152])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--near", type=int, default=128, help='the limit of new tokens for "near"')
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the report there")
    return parser.parse_args()


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


def _steps(model: Model, properties: dict[str, Any], arguments: argparse.Namespace, limit: int) -> list[float]:
    """The time of a step with the type over one without, for each round."""
    kind = gen.compile(model, gen.tool_calls(tools(properties, 30), choice="required"))
    prompts = ["Call a tool.\n"] * arguments.batch
    sampler = gen.samplers.multinomial(top_k=50, top_p=0.95)
    ratios = []
    for seed in range(arguments.rounds + 3):
        made, with_it = timed(_completions, model, prompts, kind, sampler, limit, seed)
        longest = max(len(one.token_ids) for one in made)
        _, without = timed(_completions, model, prompts, None, sampler, longest, seed)
        _, with_it_again = timed(_completions, model, prompts, kind, sampler, limit, seed)
        if seed > 2:  # the first rounds record steps
            ratios.append((with_it + with_it_again) / 2 / without)
    return ratios


def _completions(model: Model, prompts: list[str], kind: Any, sampler: Any, limit: int, seed: int) -> list[Any]:
    """Completions, also those that the limit has changed. No step reads drafts, since the cost of a plain step is
    asked."""
    settings: Any = {"sampler": sampler, "max_new_tokens": limit, "seed": seed, "details": True, "speculate": False}
    try:
        return [*gen.generate(model, prompts, kind, **settings)]
    except gen.IncompleteError as error:
        return [error.completion]
    except gen.BatchError as error:
        return [getattr(one, "completion", one) for one in error.results]


if __name__ == "__main__":
    main()
