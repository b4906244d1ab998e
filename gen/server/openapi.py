"""`/openapi.json`: what the server takes, made from the models of the bodies."""

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from gen.server.bodies import Body

_ERRORS = {
    "400": "The request cannot be answered as it is; the message says why.",
    "401": "The key is missing, or is none of the server's.",
    "404": "There is no model of that name.",
    "413": "The body is too large.",
    "415": "The body is no application/json.",
    "429": "Too many requests run and wait; `Retry-After` says when to ask again.",
    "499": "The client has left.",
    "503": "The server loads, or ends; `Retry-After` says when to ask again.",
    "504": "The request has taken longer than the server's limit.",
}


def describe(posts: Mapping[str, tuple[str, type[Body]]]) -> dict[str, Any]:
    """The description of a server, by OpenAPI 3.1.

    Args:
        posts: the name and the body of each path that takes a POST.
    """
    import gen

    bodies = [(body, "validation") for _, body in posts.values()]
    references, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    errors = {status: {"description": said} for status, said in _ERRORS.items()}
    paths: dict[str, Any] = {
        path: {
            "post": {
                "operationId": name,
                "security": [{}, {"key": []}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": references[body, "validation"]}},
                },
                "responses": {"200": {"description": "The answer, whole or as server-sent events."}, **errors},
            }
        }
        for path, (name, body) in posts.items()
    }
    for path, said in (("/v1/models", "The model's names."), ("/metrics", "Numbers for Prometheus.")):
        paths[path] = {
            "get": {
                "security": [{}, {"key": []}],
                "responses": {"200": {"description": said}, "401": {"description": _ERRORS["401"]}},
            }
        }
    for path in ("/health", "/health/live", "/health/ready"):
        states = {"200": {"description": "It is well."}, "503": {"description": "It is not."}}
        paths[path] = {"get": {"responses": states}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gen", "version": gen.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
