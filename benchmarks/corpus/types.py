"""Output types: written by hand, and drawn by a seeded generator. Each is compiled, and walked token by token."""

import datetime
import decimal
import hashlib
import json
import random
import uuid
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, field_validator
from torch import Tensor

import gen
from benchmarks.constraints.random_types import random_pattern, random_schema, random_value
from benchmarks.corpus.later import Cases, G, every, later
from benchmarks.corpus.models import DATA, model

WORDS = DATA["words"]


class Pet(BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["cat", "dog"]


class Person(BaseModel):
    name: str = Field(pattern="^[A-Z][a-z]{1,8}$")
    age: int = Field(ge=0, le=150)
    happy: bool
    pets: list[Pet] = Field(default=[], max_length=2)


class Picky(BaseModel):
    even: int

    @field_validator("even")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Tree(BaseModel):
    left: "Tree | None" = None


@dataclass
class Plain:
    a: int
    b: str | None = None


def weather(city: Literal["Paris", "Bern"], days: int = 1) -> str:
    """The weather.

    Args:
        city: where.
        days: how many.
    """
    return f"{city} {days}"


SHORT, FEW = Annotated[str, Field(min_length=2, max_length=4)], Annotated[list[bool], Field(max_length=2)]
PYTHON: list[Any] = [
    int,
    bool,
    float,
    str,
    type(None),
    bytes,
    Pet,
    Person,
    Picky,
    Tree,
    Plain,
    Any,
    object,
    complex,
    weather,
]
PYTHON += [
    list[int],
    dict[str, int],
    set[int],
    tuple[int, str],
    tuple[int, ...],
    int | None,
    int | str,
    list[Pet] | None,
]
PYTHON += [Literal["a", 1, None], datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal, uuid.UUID]
PYTHON += [dict[Literal["a", "b"], bool], Annotated[int, Field(gt=3, lt=9)], SHORT, FEW, frozenset[str], "a", 5, [int]]


def random_parts(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.choice(["word", "text", "leaf", *["sequence", "either", "repeat"] * depth])
    if kind == "word":
        return rng.choice(WORDS)
    if kind == "text":
        return G.text(rng.sample(WORDS, rng.randrange(3)), rng.choice([None, rng.randrange(1, 9)]))
    if kind == "leaf":
        leaf = rng.choice([*PYTHON[:3], G.regex(random_pattern(rng)), G.choice(WORDS[: rng.randrange(1, 5)])])
        return leaf if rng.random() < 0.95 else G.grammar(DATA["grammars"][0])
    parts = [random_parts(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if kind != "repeat":
        return getattr(G, kind)(*parts)
    least = rng.randrange(3)
    return G.repeat(parts[0], rng.choice(["", ", ", "\n"]), least, rng.choice([None, least + 1, least + 3]))


@cache
def closing(on: str) -> Tensor:
    """Which tokens of a model may close something."""
    tokens = [model(on).tokenizer.decode([token]) for token in range(model(on).tokenizer.vocab_size)]
    return torch.tensor([not token or token[-1] in '"}])>.' for token in tokens])


class Walk:
    """A sampler that draws any allowed token, often one that closes something, and notes which tokens are allowed."""

    samples = 1
    penalties = None

    def __init__(self, on: str, seed: int) -> None:
        self._closing, self._rng, self.seen = closing(on), random.Random(seed), list[str]()

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        allowed = logits[0, : len(self._closing)] > -torch.inf
        closers = allowed & self._closing
        [ids] = (closers if closers.any() and self._rng.random() < 0.5 else allowed).nonzero(as_tuple=True)
        token = self._rng.choice(ids.tolist()) if len(ids) else 0
        digest = hashlib.blake2b(np.packbits(allowed.numpy()).tobytes(), digest_size=4).hexdigest()
        self.seen.append(f"{int(allowed.sum())} allowed ({digest}), took {token}")
        return torch.tensor([[token]]), torch.arange(1), weights


@later
def compiled(output_type: Any, texts: tuple[str, ...] = (), number: int = 0) -> Any:
    """What compiling tells; a walk with room, then one with as few tokens as suffice; and which texts are accepted."""
    found: dict[str, Any] = {}
    for on in ("demo", "llama"):
        constraint, walk = gen.compile(model(on), output_type), Walk(on, number)
        limit = 32 if on == "demo" else (constraint.least_tokens or 14) + 2
        how: dict[str, Any] = {"max_new_tokens": limit, "details": True, "shorten": True, "speculate": False, "seed": 1}
        made: Any = None
        try:
            made = gen.generate(model(on), "a", output_type, sampler=walk, replay=False, **how)
        except gen.GenError as error:
            made = error
        text = getattr(made, "text", "a")
        tried = [*DATA["probes"], *texts, text, text[:-1], text + "x", text.replace(" ", "", 1)]
        accepts = "".join("01"[constraint.accepts(one)] for one in tried)
        facts = {name: getattr(constraint, name) for name in ("engine", "states", "least_tokens", "reason")}
        if "states" in constraint.reason:
            facts["reason"] = "many states"  # how many, time decided
        found[on] = facts | {"made": made, "walk": walk.seen, "accepts": accepts}
    return found


def types() -> Cases:
    rng = random.Random(2026)
    plain = [*PYTHON, *map(G.grammar, DATA["grammars"]), *map(G.regex, DATA["patterns"])]
    plain += [G.regex(random_pattern(rng)) for _ in range(50)] + [random_parts(rng) for _ in range(60)]
    plain += [G.choice(some) for some in (["a"], ["a", "b", "ab"], [], [1, 2], ["a", "a"], [""], "abc", [True, "x"])]
    for number, kind in enumerate(plain):
        yield compiled(kind, number=number)
    for number, schema in enumerate([*DATA["leaves"], *DATA["schemas"], *(random_schema(rng) for _ in range(190))]):
        whole = (
            {**schema, "$defs": DATA["definitions"] | schema.get("$defs", {})} if isinstance(schema, dict) else schema
        )
        form: dict[str, Any] = {"closed": number % 4 > 0, "whitespace": ["line", "compact", "indent"][number % 3]}
        texts = tuple(json.dumps(random_value(rng, 2), ensure_ascii=False) for _ in range(12))
        yield compiled(G.json_schema(whole, **form), texts, number=number)
    some: Any = (
        [[weather], "hermes"],
        [[weather, Pet], "llama3"],
        [[Person], "gpt-oss"],
        [[], None],
        [[weather] * 2, None],
    )
    for number, ((tools, form), choice) in enumerate(every(some, ("auto", "required", "none", "weather", "other"))):
        yield compiled(G.tool_calls(tools, choice, number % 2 == 0, form), number=number)


GROUPS = [types]
