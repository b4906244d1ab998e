"""An HTTP server for an engine: OpenAI's and Anthropic's protocols, whose texts are those of `gen.generate`."""

from typing import TYPE_CHECKING, Any

from gen.server.settings import Settings as Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from gen.engine import Engine


def app(engine: "Engine", **settings: Any) -> "Starlette":
    """An ASGI application that answers with an engine's texts; `gen serve` runs one.

    It answers `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/messages` and its `count_tokens`,
    `/v1/embeddings`, `/v1/rerank`, `/v1/score`, `/v1/models`, `/tokenize`, `/detokenize`, `/openapi.json`, `/health`
    with `/health/live` and `/health/ready`, and `/metrics`. The engine stays the caller's, who closes it.

    Args:
        engine: runs the requests.
        settings: those of `Settings`, by their names.
    Raises:
        ArgumentError: it is no engine, or a setting cannot be used.
        ModelError: starlette is not installed.
    """
    from gen.engine import Engine
    from gen.errors import ArgumentError, ModelError, refuse_unknown, show

    if not isinstance(engine, Engine):
        raise ArgumentError(f"app takes an engine, as gen.Engine(model), got {show(engine)}")
    try:
        from gen.server.routes import routed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gen"):
            raise
        raise ModelError(f"the server needs {error.name}: pip install 'gen-torch[serve]'") from error
    known = [*Settings.__annotations__]
    refuse_unknown("app", [name for name in settings if name not in known], known)
    return routed(engine, Settings(**settings))
