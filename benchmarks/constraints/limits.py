"""Whether a limit changes a value in silence: texts of many types and samplers under different limits are compared.

A case is a type, a sampler, a seed and a prompt. Its text is made with limits from the least possible up, in one batch
and alone. A text whose finish_reason is not "length" must equal that of every larger limit, token by token; "told"
counts the other texts, which the limit has changed or cut. Every text of the device engine must be whole.
"""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

import gen
from gen.models.base import Model
from gen.samplers import Sampler, beam_search, greedy, multinomial
from gen.samplers.base import Sampled

MOST = 48
"""The largest limit."""


class Invoice(BaseModel):
    total: float
    words: list[str]
    paid: bool | None = None


class Own:
    """A sampler that gen does not know: it draws as gen's own does, and its rows continue other rows."""

    penalties = None

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        rows = torch.arange(len(logits), device=logits.device)
        first = rows - rows % self.samples  # the first row of its request, from which all of its texts go on
        token_ids, _, weights = multinomial(temperature=2.0).step(logits[first], weights[first], keys)
        return token_ids, first, weights


TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "open pattern": gen.regex(r"[a-z ]+(, [0-9]{4}x)*"),
    "bounded pattern": gen.regex(r"[0-9]{2,9}-[ab]{3}"),
    "characters": gen.regex("(é|日本|😀){2,}"),
    "choice": gen.choice(["yes", "no", "never ever"]),
    "list": list[int],
    "bounded list": Annotated[list[Literal["red", "blue"]], Field(max_length=3)],
    "object": Invoice,
    "schema": gen.json_schema({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}),
    "grammar": gen.grammar('start: "(" start ")" | "(" /[a-c]+/ ")"'),
    "host pattern": gen.grammar("start: /[0-9]+(x[0-9]{3})?/"),
}
SAMPLERS: dict[str, Sampler] = {
    "greedy": greedy(),
    "drawn": multinomial(),
    "hot": multinomial(temperature=3.0),
    "cut": multinomial(temperature=0.9, top_k=30, top_p=0.95),
    "penalised": multinomial(repetition_penalty=1.2, presence_penalty=0.3),
    "samples": multinomial(samples=2, temperature=1.5),
    "beams": beam_search(3),
    "early beams": beam_search(2, early_stopping=True, length_penalty=0.0),
    "thorough beams": beam_search(2, early_stopping="never"),
    "own": Own(1),
    "own, two": Own(2),
}
PROMPTS = ["Ada", "x", "The total is ", "12"]


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """The demo model, or the given one."""
    model = gen.load(given.model or "demo", device="cpu")
    return lambda number: (checked(model, number), [])


def checked(model: Model, number: int) -> Counter[str]:
    """Check one case, and count its texts that are told and those that are not.

    Raises:
        AssertionError: a text that is not told differs from that of a larger limit, or is not whole.
    """
    chance = random.Random(number)
    kind, name = chance.choice([*TYPES]), chance.choice([*SAMPLERS])
    constraint = gen.compile(model, TYPES[kind])
    least = constraint.least_tokens or 1
    limits = sorted({least, MOST, *(chance.randint(least, MOST) for _ in range(5))})
    arguments: dict[str, Any] = {"output_type": constraint, "sampler": SAMPLERS[name], "seed": number}
    prompt = chance.choice(PROMPTS)
    batch = _made(model, [prompt] * len(limits), limits, arguments)
    alone = chance.randrange(len(limits))
    assert _made(model, [prompt], limits[alone : alone + 1], arguments) == batch[alone : alone + 1], (
        number,
        kind,
        name,
    )
    counts: Counter[str] = Counter()
    for place, texts in enumerate(batch):
        told = any(one.finish_reason == "length" for one in texts)
        counts["told" if told else "not told"] += 1
        for one in texts:
            whole = constraint.engine == "host" and one.finish_reason == "length"
            assert whole or constraint.accepts(one.text), (number, kind, name, limits[place], one)
            assert len(one.token_ids) <= limits[place], (number, kind, name, limits[place], one)
        if not told:
            for larger, others in zip(limits[place:], batch[place:], strict=True):
                assert others == texts, (number, kind, name, limits[place], larger, texts, others)
    return counts


def _made(
    model: Model, prompts: Sequence[str], limits: Sequence[int], arguments: dict[str, Any]
) -> list[list[gen.Completion]]:
    """The texts of each prompt."""
    made = gen.generate(
        model, [*prompts], max_new_tokens=[*limits], shorten=True, details=True, errors="return", **arguments
    )
    return [[_bare(one) for one in (group if isinstance(group, list) else [group])] for group in made]


def _bare(one: gen.Completion | Exception) -> gen.Completion:
    """A completion without the numbers whose last digits change with the batch."""
    if isinstance(one, gen.IncompleteError):  # what the host engine cut
        one = one.completion
    assert isinstance(one, gen.Completion), one
    return replace(one, logprobs=[], score=0.0)
