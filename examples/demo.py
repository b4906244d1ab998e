"""A story and a typed record from the model that ships with the package, and how fast it went."""

import time

from pydantic import BaseModel, Field

import gen

STORY = "Once upon a time"
RECORD = "Describe Ada as JSON.\n"


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)
    happy: bool


def main() -> None:
    model = gen.load("demo")
    gen.generate(model, STORY, max_new_tokens=2)  # the first call loads what it needs
    person = gen.compile(model, Person)
    print(f"demo model on {model.placement}\n")
    begin = time.perf_counter()
    sampler = gen.samplers.multinomial(temperature=0.5)
    story = gen.generate(model, STORY, sampler=sampler, seed=7, max_new_tokens=400, details=True)
    assert isinstance(story, gen.Completion)  # one sample; several would be a list
    print(f"{STORY}{story.text}\n")
    record = gen.generate(model, RECORD, person, sampler=gen.samplers.greedy(), details=True)
    print(f"{RECORD}{record.text}\n-> {record.value!r}, held to its type on the {record.engine}\n")
    tokens = len(story.token_ids) + len(record.token_ids)
    print(f"{tokens / (time.perf_counter() - begin):.0f} tokens per second, one text at a time")


if __name__ == "__main__":
    main()
