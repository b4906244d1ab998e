"""`gen.server.app` as a deployment of Ray Serve, with a replica for each GPU of a cluster.

Ray gives each request to a replica and replaces replicas that die or are not well. If it ends a replica, it first lets
the replica finish its answers.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import Any

import gen
from gen.errors import ArgumentError, GenError, show
from gen.server import app
from gen.server.keys import read_key
from gen.server.settings import Settings, name_of

Arguments = dict[str, Any]
_SETTINGS = {one.name for one in fields(Settings)} - {"embedder", "embedder_names"}


def build(arguments: Mapping[str, Any]) -> Any:
    """An application of Ray Serve: `import_path: gen.server.ray:build` for `serve run`, or what `ray.serve.run` takes.

    Its only deployment is "gen". You set its options in Ray, such as the number of replicas, as for any deployment.

    Args:
        arguments: those of `gen.load`, `gen.Engine` and `gen.server.app`, by their names, without an embedder and
            devices. Only "model" is required. A replica loads the model on its GPU, if it has one. Its key is
            GEN_API_KEY of its environment, unless you give one.
    Raises:
        ArgumentError: an argument is unknown, or there is no model.
    """
    import ray
    from ray import serve

    _, engine, server = _split(arguments)
    if not ray.is_initialized():
        ray.init()
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return serve.deployment(
        serve.ingress()(Replica),
        name="gen",
        num_replicas=max(1, gpus),
        ray_actor_options={"num_cpus": 1, "num_gpus": min(1, gpus)},
        max_ongoing_requests=engine["rows"] + engine["max_waiting"],
        graceful_shutdown_timeout_s=server["request_timeout"],
    ).bind(dict(arguments))


class Replica:
    """An engine and its application, in an actor of Ray's.

    Args:
        arguments: see `build`.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        import ray

        load, engine, server = _split(arguments)
        if "device_map" not in load:
            load["device"] = "cuda:0" if ray.get_gpu_ids() else "cpu"
        self._engine = gen.Engine(gen.load(**load), **engine)
        self._app = app(self._engine, **server)
        self._app.state.served.compiling.begin()

    def __serve_build_asgi_app__(self) -> Any:
        """The application, which Ray Serve lets answer requests."""
        return self._app

    def check_health(self) -> None:
        """Raise a GenError if Ray must replace this replica."""
        if (state := self._app.state.served.health()) != "ok":
            raise GenError(f"the engine is not well: {state}")


def _split(arguments: Mapping[str, Any]) -> tuple[Arguments, Arguments, Arguments]:
    """The arguments of `gen.load`, of `gen.Engine` and of `gen.server.app`, with the defaults of a replica.

    Raises:
        ArgumentError: see `build`.
    """
    given = dict(arguments)
    if not isinstance(given.get("model"), str):
        raise ArgumentError(f'args need a model, as {{"model": "organisation/name"}}, got {show([*given])}')
    load: Arguments = {"path_or_hub_id": given.pop("model")}
    load |= {name: given.pop(name) for name in _taken(gen.load) - {"device"} & given.keys()}
    engine: Arguments = {"rows": 32, "max_waiting": 256}
    engine |= {name: given.pop(name) for name in _taken(gen.Engine) & given.keys()}
    server: Arguments = {
        "names": [name_of(load["path_or_hub_id"])],
        "api_key": os.environ.get("GEN_API_KEY"),
        "request_timeout": 600,
    }
    server |= {name: given.pop(name) for name in _SETTINGS & given.keys()}
    if isinstance(keys := server.get("keys"), Mapping):  # as in a file of keys
        server["keys"] = [read_key(name, table) for name, table in keys.items()]
    if given:
        raise ArgumentError(f"{', '.join(given)}: no such argument of gen.load, gen.Engine or gen.server.app.")
    return load, engine, server


def _taken(function: Any) -> set[str]:
    """The names of a function's arguments after the first one."""
    return {*[*signature(function).parameters][1:]}
