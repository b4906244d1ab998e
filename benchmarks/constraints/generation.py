"""What a constraint costs in generation: tables of the vocabulary, the first token, each step.

    python -m benchmarks.constraints.generation --vocab 49152 131072

The models of --vocab are small Llamas with random weights. Their steps are short, so that added time shows. "tables"
are the vocabulary's, made once; "first token" is that of a type of six fields that was not compiled before, when the
tables exist. "step" is the time of calls with a constraint divided by that of a call without one that makes as many
tokens, and that runs between them. Times are CPU times of the thread that calls, on one thread, medians over rounds.
`benchmarks.outlines.records` compares whole calls with those of Outlines.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

import gen
from benchmarks.measuring import publish, read_arguments
from benchmarks.random_model import load_random_model
from gen.models.base import Model

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
    given = read_arguments(
        __doc__,
        vocab=[49152, 131072],
        batch=8,
        new_tokens=64,
        rounds=7,
    )
    rows = [{"vocabulary": vocab, **_measured(vocab, given)} for vocab in given.vocab]
    publish(given, rows=rows)


def timed(call: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    begin = time.thread_time()
    result = call(*arguments, **settings)
    return result, time.thread_time() - begin


def _measured(vocab: int, given: Namespace) -> dict[str, object]:
    """The row of one small model."""
    tables, first = [], []
    for _ in range(3):
        model = load_random_model(vocab)
        gen.generate(model, PROMPT, max_new_tokens=2)
        tables.append(timed(gen.compile, model, bool)[1])
        first.append(timed(_first_piece, model)[1])
    long = gen.compile(model, gen.json_schema(LONG))
    ratios, steps, _ = step_ratios(model, long, [PROMPT] * given.batch, given.new_tokens, given.rounds)
    return {
        "tables s": round(statistics.median(tables), 2),
        "first token s": round(statistics.median(first), 3),
        "batch": given.batch,
        "step without ms": round(statistics.median(steps) * 1e3, 2),
        "step with / without": round(statistics.median(ratios), 3),
        "fastest, slowest round": f"{min(ratios):.3f}, {max(ratios):.3f}",
    }


def _first_piece(model: Model) -> str:
    return next(iter(gen.stream(model, PROMPT, Person, max_new_tokens=512, seed=0)))


def step_ratios(
    model: Model, kind: Any, prompts: list[str], limit: int, rounds: int, *, warm: int = 3
) -> tuple[list[float], list[float], int]:
    """The time of a step with a type over one without, for each round; the seconds of a step without; how many steps.

    A call without a type makes as many tokens, and runs between two with it, since the machine's speed drifts. No step
    reads drafts: the cost of a plain step is asked.

    Args:
        warm: rounds before the others, in which steps are recorded, with and without room.
    """
    settings: Any = {"sampler": gen.samplers.multinomial(top_k=50, top_p=0.95), "details": True, "speculate": False}
    ratios, steps = [], []
    for seed in range(rounds + warm):
        typed = {"max_new_tokens": limit, "seed": seed, "shorten": True, "errors": "return", **settings}
        made, before = timed(gen.generate, model, prompts, kind, **typed)
        longest = max(len(getattr(one, "completion", one).token_ids) for one in made)  # errors have what was cut
        _, without = timed(gen.generate, model, prompts, max_new_tokens=longest, seed=seed, **settings)
        _, after = timed(gen.generate, model, prompts, kind, **typed)
        if seed >= warm:
            ratios.append((before + after) / 2 / without)
            steps.append(without / longest)
    return ratios, steps, longest


if __name__ == "__main__":
    main()
