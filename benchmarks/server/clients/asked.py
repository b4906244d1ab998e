"""What the clients ask for; imports only pydantic, which each of their environments has."""

from typing import Any, Literal

from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": "Describe Ada as JSON."}]


class Person(BaseModel):
    """A person."""

    name: Literal["Ada", "Bob"]
    happy: bool
