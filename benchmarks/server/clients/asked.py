"""What the clients ask for."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

Tries = dict[str, Callable[[], Any]]
MESSAGES: Any = [{"role": "user", "content": "Describe Ada as JSON."}]


class Person(BaseModel):
    """A person."""

    name: Literal["Ada", "Bob"]
    happy: bool


def person(made: Any) -> Person:
    """What a client has made, which must be a person."""
    assert isinstance(made, Person), made
    return made


def several(pieces: Any) -> bool:
    """Whether a stream has more than two pieces."""
    return len(list(pieces)) > 2


def options(url: str) -> dict[str, Any]:
    """How clients of OpenAI's protocol are told of the server."""
    return {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
