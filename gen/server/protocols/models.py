"""`/v1/models`, OpenAI's."""

from typing import Any

from gen.server.served import Served, no_model


def list_models(served: Served) -> dict[str, Any]:
    """All models of the server."""
    return {"object": "list", "data": [*_models(served).values()]}


def one_model(served: Served, name: str) -> dict[str, Any]:
    """One model of the server."""
    known = _models(served)
    if name not in known:
        raise no_model(name, [*known])
    return known[name]


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
