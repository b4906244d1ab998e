"""`/v1/models`, OpenAI's."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gen.server.served import Served, no_model
from gen.server.writing import as_json


async def list_models(served: Served, request: Request) -> Response:
    """All models of the server."""
    return as_json({"object": "list", "data": [*_models(served).values()]})


async def one_model(served: Served, request: Request) -> Response:
    """One model of the server."""
    name, known = request.path_params["name"], _models(served)
    if name not in known:
        raise no_model(name, [*known])
    return as_json(known[name])


def _models(served: Served) -> dict[str, dict[str, Any]]:
    settings, limit = served.settings, served.model.context_length
    known: dict[str, int | None] = {name: limit for name in settings.names}
    if settings.embedder is not None:
        known |= {name: None for name in settings.embedder_names}
    return {
        name: {
            "id": name,
            "object": "model",
            "created": served.since,
            "owned_by": "gen",
            **({} if length is None else {"max_model_len": length}),
        }
        for name, length in known.items()
    }
