"""An HTTP server for an engine: OpenAI's and Anthropic's protocols, whose texts are those of `gen.generate`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from gen.embedding.encoder import Encoder
    from gen.engine import Engine


def app(
    engine: "Engine",
    *,
    names: Iterable[str] = ("gen",),
    embedder: "Encoder | None" = None,
    embedder_names: Iterable[str] = ("embedder",),
    api_key: str | None = None,
    max_new_tokens: int | None = None,
    max_prompts: int = 2048,
    request_timeout: float = 600,
    stall_timeout: float = 300,
    max_body_mb: float = 8,
    max_schema_kb: float = 256,
    max_image_mpx: float = 40,
    cors_origins: Iterable[str] = (),
) -> "Starlette":
    """An ASGI application that answers with an engine's texts; `gen serve` runs one.

    It answers `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/messages` and its `count_tokens`,
    `/v1/embeddings`, `/v1/models`, `/tokenize`, `/detokenize`, `/health` and `/metrics`.
    The engine stays the caller's, who closes it.

    Args:
        engine: runs the requests.
        names: the model's names for clients; answers to requests that name no model have the first one.
        embedder: from `gen.load_encoder`, for `/v1/embeddings`; None for none.
        embedder_names: the embedder's names for clients.
        api_key: what clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`; None for no key.
        max_new_tokens: how many tokens a text has at most; None for what the context leaves.
        max_prompts: how many texts a request may ask for, prompts times n.
        request_timeout: seconds after which a request is given up.
        stall_timeout: seconds without a step, while there is work, after which `/health` answers 503.
        max_body_mb: how large the body of a request may be, in MiB.
        max_schema_kb: how large a request's schemas, patterns and tools may be, in KiB.
        max_image_mpx: how many millions of pixels an image may have.
        cors_origins: the origins whose pages may call the server from a browser; none unless you give some.
    Raises:
        ArgumentError: an argument cannot be used.
        ModelError: starlette is not installed.
    """
    from gen.errors import ModelError

    try:
        from gen.server.routes import routed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gen"):
            raise
        raise ModelError(f"the server needs {error.name}: pip install 'gen-torch[serve]'") from error
    from gen.server.settings import Settings

    settings = Settings(
        names=tuple(names),
        embedder=embedder,
        embedder_names=tuple(embedder_names),
        api_key=api_key,
        max_new_tokens=max_new_tokens,
        max_prompts=max_prompts,
        request_timeout=request_timeout,
        stall_timeout=stall_timeout,
        max_body_mb=max_body_mb,
        max_schema_kb=max_schema_kb,
        max_image_mpx=max_image_mpx,
        cors_origins=tuple(cors_origins),
    )
    return routed(engine, settings)
