"""What programs do with instructor."""

from typing import Any

import instructor
from openai import OpenAI

from benchmarks.server.clients.asked import MESSAGES, Person
from benchmarks.server.clients.running import run_all


def made_with(url: str, mode: str) -> bool:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    patched: Any = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
    made = patched.chat.completions.create(model="demo", response_model=Person, messages=MESSAGES, max_retries=1)
    return isinstance(made, Person)


def tools(url: str) -> bool:
    return made_with(url, "TOOLS")


def json(url: str) -> bool:
    return made_with(url, "JSON_SCHEMA")


if __name__ == "__main__":
    run_all("instructor")
