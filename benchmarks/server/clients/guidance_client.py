"""What programs do with guidance, with the server's model."""

from typing import Any, Literal

from guidance import assistant, gen, models, user
from guidance import json as as_json
from pydantic import BaseModel

from benchmarks.server.clients.running import run_all


class Person(BaseModel):
    name: Literal["Ada", "Bob"]
    happy: bool


def made(url: str, what: Any) -> Any:
    model = models.OpenAI("demo", base_url=f"{url}/v1", api_key="none", echo=False)
    with user():
        model += "Describe Ada"
    with assistant():
        model += what
    return model["x"]


def text(url: str) -> Any:
    return made(url, gen("x", max_tokens=8))


def typed(url: str) -> Any:
    return Person.model_validate_json(made(url, as_json("x", schema=Person)))


if __name__ == "__main__":
    run_all("guidance", [text, typed])
