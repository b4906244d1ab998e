"""Random requests through engines, each compared with `gen.generate` alone: texts, values, ids, errors.

Requests join at random moments, are read piece by piece or at the end, and some leave. They have samplers with
penalties, stop strings, output types of both engines, likeliest tokens, and functions of the user's, some of which
fail. Engines have different numbers of rows, read prompts in different parts, and replay steps or not. What a cancelled
request gave must be the beginning of its text.
"""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

import gen
from benchmarks.cases import random_sampler
from benchmarks.corpus import telling
from benchmarks.corpus.models import model

MODELS = ["demo", "llama", "gpt2", "gemma3_text", "mixtral", "bloom", "deepseek_v3", "qwen3_next", "bamba"]
REQUESTS = 50  # an engine
STARTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "a", "There was a fox who ", "{"]
STOPS: list[Any] = [None, None, "\n", ["e", " the"], "e<s>", ["</s>"], "zq"]
BIAS = {65: 2.0, 66: -torch.inf}
LIST = 'start: "(" start ")" | "x"'
TYPES: list[Callable[[], Any]] = [
    lambda: int,
    lambda: bool,
    lambda: Literal["red", "green"],
    lambda: list[Literal[1, 2, 3]],
    lambda: gen.regex(r"[a-z]{1,6}(-\d{2,4})?"),
    lambda: gen.grammar(LIST),
]
Request = dict[str, Any]


class Planted(Exception):
    """The error that a user's function raises."""


def no_even(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    changed = logits.clone()
    changed[:, ::2] -= 4.0
    return changed


def by_length(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    return logits + (lengths % 3 == 0).unsqueeze(1) * torch.linspace(-2, 2, logits.shape[1])


def fails(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    raise Planted("planted")


def random_request(rng: random.Random, number: int) -> Request:
    """One request's arguments; the demo model's and the tiny ones' context has room for them."""
    start = rng.choice(STARTS) * rng.choice([1, 1, 1, 2, 3])
    request: Request = {
        "prompt": start[:40],
        "sampler": random_sampler(rng) if rng.random() < 0.9 else gen.samplers.greedy(logit_bias=BIAS),
        "max_new_tokens": rng.choice([0, 1, 2, 5, 9, 17, 30, 45]),
        "seed": number,
        "stop": rng.choice(STOPS),
    }
    if rng.random() < 0.3:
        request |= {"output_type": rng.choice(TYPES)(), "stop": None}
    if rng.random() < 0.2:
        request["top_logprobs"] = rng.choice([0, 1, 3, 5])
    if rng.random() < 0.2:
        request["logits_processors"] = rng.choice([[no_even], [by_length], [no_even, by_length]])
    elif rng.random() < 0.02:
        request["logits_processors"] = [fails]
    if rng.random() < 0.3:
        request["eos_token_id"] = rng.choice([[], [101], [10, 32]])
    return request


def outcome(completion: Callable[[], Any]) -> Any:
    """The result of a request, as JSON: the fields that must be the same as in a call alone."""
    try:
        return telling.told(completion())
    except Exception as error:
        return telling.told(error)


def differences(found: Any, alone: Any) -> list[str]:
    """Where a result differs from that of the call alone. Numbers may differ by 1e-3, since sums are added in another
    order; tokens that are about equally likely may come in another order too."""

    def near(one: Any, other: Any) -> bool:
        return isinstance(one, float) and isinstance(other, float) and abs(one - other) < 1e-3

    paths = [path for path, one, other in telling.differences(found, alone, 0.0) if not near(one, other)]
    return [path for path in paths if "top_logprobs[" not in path or ".logprob" in path]


def run(model: Any, rng: random.Random, first: int, count: int) -> Iterator[tuple[Request, str, list[str]]]:
    """Run requests through one engine; yields each with its end ("ended", "left", "failed") and what is wrong."""
    requests = [random_request(rng, first + number) for number in range(count)]
    engine = gen.Engine(
        model,
        rows=rng.choice([1, 2, 4, 7, 16]),
        max_waiting=count,
        admit_tokens=rng.choice([None, None, 3, 16, 4096]),
        replay=rng.random() < 0.7,
    )
    pieces: list[list[str]] = [[] for _ in requests]
    streams: list[Any] = []
    left: set[int] = set()
    with engine:
        for request in requests:
            try:
                streams.append(engine.submit(**request))
            except gen.GenError as error:
                streams.append(error)  # it was refused at once
            for _ in range(rng.choice([0, 0, 0, 1, 5])):
                number = rng.randrange(len(streams))
                action = rng.random()
                if isinstance(streams[number], gen.GenError):
                    continue
                if action < 0.8:
                    _read(streams[number], pieces[number])
                elif action < 0.9:
                    streams[number].cancel()
                    left.add(number)
        found = []
        for number, stream in enumerate(streams):
            if isinstance(stream, gen.GenError):
                found.append(telling.told(stream))
                continue
            while number not in left and _read(stream, pieces[number]):
                pass
            found.append(outcome(stream.completion))
    for number, (request, made) in enumerate(zip(requests, found, strict=True)):
        alone = outcome(partial(gen.generate, model, **request, details=True))
        said, made_alone = "".join(pieces[number]), alone.get("completion") or alone  # an error may have a text
        if number in left and "closed before its text had ended" in made.get("error", ""):
            yield request, "left", [] if made_alone.get("text", "").startswith(said) else ["pieces"]
            continue
        wrong = differences(made, alone)
        if "text" in made_alone and number not in left and said != made_alone["text"]:
            wrong.append("pieces")
        yield request, "failed" if "error" in alone else "ended", wrong


def _read(stream: Any, pieces: list[str]) -> bool:
    """Take a piece. Returns whether there was one."""
    try:
        piece = next(stream, "")
    except Exception:  # `completion` raises it, too
        return False
    pieces.append(piece)
    return bool(piece)


def check(name: str, number: int, count: int = REQUESTS) -> tuple[Counter[str], list[str]]:
    """How many requests of an engine ended, failed or left; and those that were wrong, with what was wrong."""
    counts, wrong = Counter(requests=count), list[str]()
    for request, became, differing in run(model(name), random.Random(str(number)), number * count, count):
        counts[f"{name}: {became}"] += 1
        if differing:
            wrong.append(f"{name}: {', '.join(differing)} of {request}")
    return counts, wrong


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """A model of another architecture each time, or the given one."""
    return lambda number: check(given.model or MODELS[number % len(MODELS)], number)
