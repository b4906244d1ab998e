"""The settings of a server; see `gen.server.app`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, check_number, show
from gen.server.keys import Key

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from gen.embedding.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server, checked.

    Attributes:
        names: the model's names for clients; answers to requests that name no model have the first one.
        embedder: from `gen.load_encoder`, for `/v1/embeddings`, `/v1/rerank` and `/v1/score`; None for none.
        embedder_names: the embedder's names for clients.
        api_key: what clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`; None for no key.
        keys: further keys, with names and limits.
        max_new_tokens: how many tokens a text has at most; None for what the context leaves.
        max_prompts: how many texts a request may ask for, prompts times n.
        request_timeout: seconds after which a request is given up.
        stall_timeout: seconds without a step, while there is work, after which `/health` answers 503.
        max_body_mb: how large the body of a request may be, in MiB.
        max_schema_kb: how large a request's schemas, patterns and tools may be, in KiB.
        max_image_mpx: how many millions of pixels an image may have.
        cors_origins: the origins whose pages may call the server from a browser; none unless you give some.
        log_texts: whether the line of a request in the log has its texts, too.
        strict: whether a field that the server does not know is refused. Else it changes nothing, and the answer's
            header `x-ignored-fields` names it.
        tracer: of OpenTelemetry, which gets a span for each request of texts; None for none.
    Raises:
        ArgumentError: a setting cannot be used.
    """

    names: Sequence[str] = ("gen",)
    embedder: "Encoder | None" = None
    embedder_names: Sequence[str] = ("embedder",)
    api_key: str | None = None
    keys: Sequence[Key] = ()
    max_new_tokens: int | None = None
    max_prompts: int = 2048
    request_timeout: float = 600
    stall_timeout: float = 300
    max_body_mb: float = 8
    max_schema_kb: float = 256
    max_image_mpx: float = 40
    cors_origins: Sequence[str] = ()
    log_texts: bool = False
    strict: bool = False
    tracer: "Tracer | None" = None

    def __post_init__(self) -> None:
        for name in ("names", "embedder_names", "cors_origins"):
            given = getattr(self, name)
            listed = isinstance(given, Collection) and not isinstance(given, str)
            if not listed or not all(isinstance(one, str) and one for one in given):
                raise ArgumentError(f"{name} must be a list of names, got {show(given)}")
            object.__setattr__(self, name, tuple(given))
        for one in self.cors_origins:
            if one.endswith("/"):
                raise ArgumentError(f"an origin has no slash at its end, as browsers send it, got {show(one)}")
        if not self.names:
            raise ArgumentError("names must have at least one name.")
        if self.embedder is not None:
            from gen.embedding.encoder import Encoder  # needs torch, which an embedder has loaded

            if not isinstance(self.embedder, Encoder):
                raise ArgumentError(f"embedder must be an encoder, as from gen.load_encoder, got {show(self.embedder)}")
        if not isinstance(self.keys, Collection) or not all(isinstance(one, Key) for one in self.keys):
            raise ArgumentError('keys must be a list of keys, as [gen.server.keys.Key(name="alice", key="...")].')
        own = () if self.api_key is None else (Key(key=self.api_key),)
        object.__setattr__(self, "keys", (*own, *self.keys))
        for what in ("name", "key"):
            if len({getattr(one, what) for one in self.keys}) < len(self.keys):
                raise ArgumentError(f"two keys have the same {what}.")
        if self.max_new_tokens is not None:
            read_whole("max_new_tokens", self.max_new_tokens, minimum=1)
        read_whole("max_prompts", self.max_prompts, minimum=1)
        for name in ("log_texts", "strict"):
            check_flag(name, getattr(self, name))
        for name in ("request_timeout", "stall_timeout", "max_body_mb", "max_schema_kb", "max_image_mpx"):
            check_number(name, getattr(self, name), above=0)


def name_of(model: str) -> str:
    """A model's name for clients: a name on the Hub unchanged; for a folder or a file, the last part of its path."""
    path = Path(model)
    return path.name if path.exists() and path.name else model
