"""The settings of a server; see `gen.server.app`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gen.arguments import read_whole
from gen.errors import ArgumentError, check_number, show
from gen.server.keys import check_key

if TYPE_CHECKING:
    from gen.embedding.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `gen.server.app`, checked."""

    names: tuple[str, ...]
    embedder: "Encoder | None"
    embedder_names: tuple[str, ...]
    api_key: str | None
    max_new_tokens: int | None
    max_prompts: int
    request_timeout: float
    stall_timeout: float
    max_body_mb: float
    max_schema_kb: float
    max_image_mpx: float
    cors_origins: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("names", "embedder_names", "cors_origins"):
            given = getattr(self, name)
            if not all(isinstance(one, str) and one for one in given) or (name == "names" and not given):
                raise ArgumentError(f"{name} must be a list of names, got {show(given)}")
        if self.api_key is not None:
            check_key(self.api_key)
        if self.max_new_tokens is not None:
            read_whole("max_new_tokens", self.max_new_tokens, minimum=1)
        read_whole("max_prompts", self.max_prompts, minimum=1)
        for name in ("request_timeout", "stall_timeout", "max_body_mb", "max_schema_kb", "max_image_mpx"):
            check_number(name, getattr(self, name), above=0)


@dataclass(frozen=True, kw_only=True)
class CompileLimits:
    """The processor time and the memory that compiling one output type may take.

    Attributes:
        seconds: processor time.
        memory: bytes, besides what the process has before it compiles.
    """

    seconds: int = 30
    memory: int = 2**31


def name_of(model: str) -> str:
    """A model's name for clients: a name on the Hub unchanged; for a folder or a file, the last part of its path."""
    path = Path(model)
    return path.name if path.exists() and path.name else model
