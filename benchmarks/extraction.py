"""What a small model extracts from messages: with a description of the type and without, and in which layout.

    make real
    python -m benchmarks.extraction --model models/SmolLM2-135M-Instruct

Messages are made up from fixed parts, so what they say is known. `fields`: 20 orders, each with seven fields; how many
have the right value. `layouts`: 60 shopping lists of three to six things; how many things have the right name and
number, in each layout of whitespace, in the layout that the model chooses, and as free text that is asked for JSON.
Greedy, in one batch; time is CPU time of this process.
"""

import json
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, Field

import gen
from benchmarks.measuring import REAL, publish, read_arguments

NAMES = ["Ada Lovelace", "Ben Okri", "Carla Bruni", "Deniz Kaya", "Emil Zátopek", "Fumi Sato"]
CITIES = ["Berlin", "Bogota", "Lagos", "Oslo", "Kyoto"]
THINGS = ["lamp", "chair", "mirror", "table", "clock", "vase"]
FOODS = ["apples", "eggs", "lemons", "onions", "pears", "buns", "carrots", "plums", "bagels", "melons"]
QUESTION = 'List everything that is to be bought, as a JSON list of objects with "name" and "count".'
COLOURS = ["red", "green", "blue", "black"]


class Order(BaseModel):
    customer: str = Field(max_length=30, description="the full name of who writes")
    thing: str = Field(max_length=20, description="what is ordered, one word in the singular")
    count: int = Field(ge=1, le=99, description="how many are ordered")
    colour: Literal["red", "green", "blue", "black"]
    city: str = Field(max_length=20, description="where it is sent to")
    express: bool = Field(description="whether it is urgent")
    email: str | None = Field(None, max_length=30, description="the address to write to")


class Item(BaseModel):
    name: str = Field(max_length=20)
    count: int = Field(ge=1, le=99)


def orders(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Messages, and what they say."""
    random, made = Random(0), []
    for _ in range(count):
        name, number = random.choice(NAMES), random.randint(2, 40)
        thing, colour, city = random.choice(THINGS), random.choice(COLOURS), random.choice(CITIES)
        express, mail = random.random() < 0.5, random.random() < 0.5
        email = f"{name.split()[0].lower()}@example.org" if mail else None
        text = f"Hello, this is {name}. Please send {number} {colour} {thing}s to our shop in {city}. "
        text += "It is urgent, we need them tomorrow. " if express else "There is no hurry at all. "
        text += f"You can write to {email}." if mail else "Thank you."
        truth = {"customer": name, "thing": thing, "count": number, "colour": colour, "city": city}
        made.append((text, {**truth, "express": express, "email": email}))
    return made


def lists(count: int, foods: Sequence[str] = FOODS, *, seed: int = 1) -> list[tuple[str, list[tuple[str, int]]]]:
    """Messages, and the things that they ask for."""
    random, made = Random(seed), []
    for _ in range(count):
        found = [(food, random.randint(2, 30)) for food in random.sample(foods, random.randint(3, 6))]
        said = [f"{number} {food}" for food, number in found]
        made.append((f"We are out of food. Please buy {', '.join(said[:-1])} and {said[-1]}.\n\n{QUESTION}", found))
    return made


def fields_right(model: Any) -> list[dict[str, object]]:
    cases = orders(20)
    every = gen.json_schema(Order, required="all")
    arms: dict[str, tuple[Any, str | None]] = {
        "type alone": (Order, None),
        "all fields required": (every, None),
        "described, schema": (Order, gen.describe(Order)),
        "described, schema, all required": (every, gen.describe(every)),
        "described, example, all required": (every, gen.describe(every, form="example")),
    }
    rows: list[dict[str, object]] = []
    for name, (asked, told) in arms.items():
        system = {"role": "system", "content": f"You read orders. Answer with JSON.\n{told or ''}".strip()}
        chats = [[system, {"role": "user", "content": text}] for text, _ in cases]
        made, seconds = _made(model, chats, asked)
        right = dict.fromkeys(Order.model_fields, 0)
        for one, (_, truth) in zip(made, cases, strict=True):
            for field, wanted in truth.items():
                given = getattr(one.value, field)
                right[field] += str(given).casefold() == str(wanted).casefold()
        rows.append({"asked": name, "right of 140": sum(right.values()), **right, "CPU s": f"{seconds:.0f}"})
    return rows


def items_found(model: Any) -> list[dict[str, object]]:
    cases, rows = lists(60), list[dict[str, object]]()
    chats = [[{"role": "user", "content": text}] for text, _ in cases]
    kind = list[Item]
    for whitespace in ("line", "compact", "indent", "model", None):
        bounded = None if whitespace is None else gen.json_schema(kind, whitespace=whitespace)
        made, seconds = _made(model, chats, bounded)
        right = wrong = 0
        for one, (_, truth) in zip(made, cases, strict=True):
            found = _read(one.text)
            right += len(found & set(truth))
            wrong += len(found - set(truth))
        tokens = sum(len(one.token_ids) for one in made)
        total = sum(len(truth) for _, truth in cases)
        row = {"layout": whitespace or "free text", f"found of {total}": right, "wrong": wrong, "tokens": tokens}
        rows.append({**row, "cut": sum(one.finish_reason == "length" for one in made), "CPU s": f"{seconds:.0f}"})
    return rows


def _made(model: Any, chats: list[Any], asked: Any) -> tuple[list[Any], float]:
    begun = time.process_time()
    greedy = gen.samplers.greedy()
    made = gen.generate(model, chats, asked, sampler=greedy, max_new_tokens=200, shorten=True, details=True)
    return made, time.process_time() - begun


def _read(text: str) -> set[tuple[str, int]]:
    """The things of a list's text: the first JSON list in it."""
    begin = text.find("[")
    try:
        found, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, IndexError):
        return set()
    good = [one for one in found if isinstance(one, dict) and {"name", "count"} <= one.keys()]
    return {(str(one["name"]).casefold(), one["count"]) for one in good if isinstance(one["count"], int)}


def main() -> None:
    given = read_arguments(__doc__, model=str(REAL), only=({"choices": [*PARTS]}, "which part; default: both"))
    model = gen.load(given.model, device="cpu")
    publish(given, **{name: find(model) for name, find in PARTS.items() if given.only in (None, name)})


PARTS = {"fields": fields_right, "layouts": items_found}


if __name__ == "__main__":
    main()
