"""What a constraint costs in generation: tables of the vocabulary, the first token, each step; beside Outlines 1.3.

    python -m benchmarks.constraints.generation --vocab 49152 131072 --model models/SmolLM2-135M-Instruct

The models of --vocab are small Llamas with random weights. Their steps are short, so that added time shows. "tables"
are the vocabulary's, made once; "first token" is that of a type of six fields that was not compiled before, when the
tables exist. "step" is the time of calls with a constraint divided by that of a call without one that makes as many
tokens, and that runs between them. Times are CPU times of the thread that calls, on one thread, medians over rounds.
With --model the same type is generated with that model, by gen and, where it is installed, by Outlines.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field

import gen
from benchmarks.measuring import machine, markdown_table, write_json
from benchmarks.random_model import save_random_model
from gen.models.checkpoints import DEMO
from gen.models.transformers.model import TransformersModel

PROMPT = "Describe Ada Lovelace as JSON.\n"
LONG = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    email: str
    city: str = Field(max_length=40)
    married: bool
    kind: Literal["scientist", "artist", "other"]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "rows": [], "end to end": []}
    for vocab in arguments.vocab:
        with tempfile.TemporaryDirectory() as folder:
            save_random_model(Path(folder), vocab)
            report["rows"].append({"vocabulary": vocab, **_measured(folder, arguments)})
    if arguments.model:
        report["end to end"] = _end_to_end(arguments)
    print(json.dumps(report["machine"]), "\n")
    for rows in (report["rows"], report["end to end"]):
        if rows:
            print(markdown_table(rows), "\n")
    if arguments.json:
        write_json(arguments.json, report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="*", default=[49152, 131072])
    parser.add_argument("--model", help="a directory or Hub id, for the end to end case")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the report there")
    return parser.parse_args()


def _timed(call: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    begin = time.thread_time()
    result = call(*arguments, **settings)
    return result, time.thread_time() - begin


def _measured(folder: str, arguments: argparse.Namespace) -> dict[str, object]:
    """The row of one small model."""
    tables, first = [], []
    for _ in range(3):
        model = gen.load(folder, device="cpu")
        gen.generate(model, PROMPT, max_new_tokens=2)
        tables.append(_timed(gen.compile, model, bool)[1])
        first.append(_timed(_first_piece, model)[1])
    ratios, unconstrained = _step(model, arguments)
    return {
        "tables s": round(statistics.median(tables), 2),
        "first token s": round(statistics.median(first), 3),
        "batch": arguments.batch,
        "step without ms": round(unconstrained * 1e3, 2),
        "step with / without": round(statistics.median(ratios), 3),
        "fastest, slowest round": f"{min(ratios):.3f}, {max(ratios):.3f}",
    }


def _first_piece(model: TransformersModel) -> str:
    return next(iter(gen.stream(model, PROMPT, Person, max_new_tokens=512, seed=0)))


def _step(model: TransformersModel, arguments: argparse.Namespace) -> tuple[list[float], float]:
    """The time of a step with the constraint over one without, for each round; and the seconds of a step without."""
    prompts = [PROMPT] * arguments.batch
    long = gen.compile(model, gen.json_schema(LONG))
    sampler = gen.samplers.multinomial(top_k=50, top_p=0.95)
    ratios, steps = [], []
    for seed in range(arguments.rounds + 3):
        settings: Any = {"sampler": sampler, "max_new_tokens": arguments.new_tokens, "seed": seed, "speculate": False}
        typed = partial(_timed, gen.generate, model, prompts, long, shorten=True, details=True, **settings)
        made, before = typed()
        longest = max(len(one.token_ids) for one in made)
        _, without = _timed(gen.generate, model, prompts, **settings | {"max_new_tokens": longest})
        _, after = typed()  # the machine's speed drifts
        if seed > 2:  # the first rounds record steps, with and without room
            ratios.append((before + after) / 2 / without)
            steps.append(without / longest)
    return ratios, statistics.median(steps)


def _end_to_end(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A type generated with a real model by gen and by Outlines: the first call, and later ones."""
    model = gen.load(arguments.model, device="cpu", dtype="float32")
    engines = {"gen": _gen(model, arguments)}
    if find_spec("outlines"):
        engines["Outlines"] = _outlines(model, arguments)
    rows: list[dict[str, object]] = []
    for name, make in engines.items():
        generate, ready = _timed(make)
        for batch in (1, arguments.batch):
            values, cold = _timed(generate, batch)
            _, warm = _timed(generate, batch)
            rows.append(
                {
                    "engine": name,
                    "batch": batch,
                    "ready s": round(ready, 2),
                    "first call s": round(cold, 2),
                    "later call s": round(warm, 2),
                    "whole": f"{sum(map(_is_whole, values))} of {len(values)}",
                }
            )
    return rows


def _is_whole(value: object) -> bool:
    try:
        return isinstance(value, Person) or Person.model_validate_json(str(value)) is not None
    except ValueError:
        return False


def _gen(model: TransformersModel, arguments: argparse.Namespace) -> Callable[[], Callable[[int], list[Any]]]:
    def make() -> Callable[[int], list[Any]]:
        constraint = gen.compile(model, Person)
        greedy, most = gen.samplers.greedy(), arguments.new_tokens
        return lambda batch: gen.generate(
            model, [PROMPT] * batch, constraint, sampler=greedy, max_new_tokens=most, shorten=True
        )

    return make


def _outlines(model: TransformersModel, arguments: argparse.Namespace) -> Callable[[], Callable[[int], list[Any]]]:
    from outlines import Generator, from_transformers
    from transformers import AutoTokenizer

    folder = DEMO if arguments.model == "demo" else arguments.model
    wrapped = from_transformers(model.hf_model, AutoTokenizer.from_pretrained(folder))
    settings = {"max_new_tokens": arguments.new_tokens, "do_sample": False}

    def make() -> Callable[[int], list[Any]]:
        generator = Generator(wrapped, Person)
        return lambda batch: list(generator.batch([PROMPT] * batch, **settings))

    return make


if __name__ == "__main__":
    main()
