"""What programs do with outlines, with the server's model."""

from typing import Any

import outlines
from openai import OpenAI

from benchmarks.server.clients.asked import Person
from benchmarks.server.clients.running import run_all


def _model(url: str) -> Any:
    return outlines.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), "demo")


def text(url: str) -> Any:
    return _model(url)("hi", max_tokens=8)


def stream(url: str) -> bool:
    return len(list(_model(url).stream("hi", max_tokens=8))) > 2


def typed(url: str) -> Any:
    return Person.model_validate_json(_model(url)("Describe Ada", Person))


if __name__ == "__main__":
    run_all("outlines")
