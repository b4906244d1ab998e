"""What programs do with guidance, with the server's model."""

from typing import Any

from guidance import assistant, gen, models, user
from guidance import json as as_json

from benchmarks.server.clients.asked import Person
from benchmarks.server.clients.running import run_all


def _made(url: str, what: Any) -> Any:
    model = models.OpenAI("demo", base_url=f"{url}/v1", api_key="none", echo=False)
    with user():
        model += "Describe Ada"
    with assistant():
        model += what
    return model["x"]


def text(url: str) -> Any:
    return _made(url, gen("x", max_tokens=8))


def typed(url: str) -> Any:
    return Person.model_validate_json(_made(url, as_json("x", schema=Person)))


if __name__ == "__main__":
    run_all("guidance")
