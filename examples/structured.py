"""Values of Python types from a chat model, here SmolLM2-135M-Instruct: five texts to extract from, five to classify.

make real    # fetches and converts the model, then runs this too
"""

import sys
import time
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import gen

Word = Annotated[str, Field(max_length=40)]


class Person(BaseModel):
    name: Word
    born: int = Field(ge=1000, le=2100)
    profession: Word


class Meeting(BaseModel):
    title: Word
    day: date
    people: list[Word] = Field(max_length=4)


class Order(BaseModel):
    product: Word
    quantity: int = Field(ge=1, le=999)
    currency: Literal["EUR", "USD", "GBP"]
    price: float = Field(ge=0, le=9999)


class Address(BaseModel):
    street: Word
    city: Word
    postal_code: Annotated[str, Field(pattern="^[0-9]{5}$")]


class Recipe(BaseModel):
    dish: Word
    ingredients: list[Word] = Field(min_length=2, max_length=5)
    minutes: int = Field(ge=1, le=600)


class Review(BaseModel):
    reason: Annotated[str, Field(max_length=80)]  # a reason before the label makes the label better
    sentiment: Literal["positive", "negative"]


class Ticket(BaseModel):
    team: Literal["billing", "technical", "sales"]
    urgent: bool


def as_json(text: str, keys: str) -> str:
    return f"Text: {text}\nWrite JSON of the text, with the keys {keys}."


PROMPTS: list[tuple[str, object]] = [
    (as_json("Ada Lovelace, born in 1815, was an English mathematician.", "name, born, profession"), Person),
    (as_json("Budget review on 2024-03-05 with Anna, Ben and Carla.", "title, day, people"), Meeting),
    (as_json("Please send me 3 boxes of green tea, at 12.50 EUR each.", "product, quantity, currency, price"), Order),
    (as_json("He lives at 12 Rose Street, 10115 Berlin.", "street, city, postal_code"), Address),
    (as_json("For pancakes take flour, milk and eggs; bake for 20 minutes.", "dish, ingredients, minutes"), Recipe),
    (as_json("It broke after two days. A waste of money.", "reason, sentiment (positive or negative)"), Review),
    (as_json("I was charged twice this month!", "team (billing, technical or sales), urgent"), Ticket),
    ('What language is "Guten Morgen, wie geht es dir?" written in?', Literal["English", "French", "German"]),
    ("Which word fits this message, spam or not spam? You have WON a free prize!", gen.choice(["spam", "not spam"])),
    ("Is Paris the capital of France?", bool),
]


def main() -> None:
    model = gen.load(sys.argv[1], dtype="float32")
    begin = time.perf_counter()
    answers = gen.generate(
        model,
        [prompt for prompt, _ in PROMPTS],
        [output_type for _, output_type in PROMPTS],
        chat=True,
        sampler=gen.samplers.greedy(),
        details=True,
    )
    seconds = time.perf_counter() - begin
    for (prompt, _), answer in zip(PROMPTS, answers, strict=True):
        print(f"> {prompt}\n{answer.value!r}\n")
    tokens = sum(len(answer.token_ids) for answer in answers)
    print(f"{len(answers)} whole values, {tokens} tokens in {seconds:.1f} s, with the time to compile the types")


if __name__ == "__main__":
    main()
