"""The engine of a Ray cluster: Ray Data hands the open shards to actors, each with a GPU of its own.

Ray restarts an actor that dies, on another node if needed, and gives it the shard again. A shard that kills actors
again and again ends the job: only `gen.offline.engines.local`, on one machine, searches for the row that does it.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from gen.errors import ArgumentError, GenError
from gen.offline.engines.engine import Open
from gen.offline.engines.processes import Answer, read_answer
from gen.offline.engines.progress import say

_RETRIES = 3  # of a shard whose actor has died, and of Ray itself if nothing gets done


class RayData:
    """See `gen.offline.engines.engine.Engine`.

    Args:
        address: of the cluster, as "ray://host:10001" or "auto"; None starts one on this machine, if there is none.
    Raises:
        ArgumentError: Ray is not installed.
    """

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError(
                f"the engine ray needs Ray ({error}); install it with pip install 'gen-torch[ray]'."
            ) from error
        self._ray, self._address = ray, address
        self._connected = False

    def threads(self) -> int:
        """See `Engine.threads`: an actor has one CPU of Ray's."""
        return 1

    def check(self, settings: Mapping[str, Any], threads: int, longest: Mapping[str, Any] | None) -> Answer:
        """See `Engine.check`: a separate task loads the model where Ray has room."""
        self._connect()
        task = self._ray.remote(max_retries=_RETRIES, **self._resources())(_check)
        try:
            told = self._ray.get(task.remote(json.dumps([settings, self._device(), threads, longest])))
        except self._ray.exceptions.RayError as error:
            raise GenError(f"a worker of Ray died before the first row: {_first_line(error)}") from error
        return _read(told)

    def run(self, job: Open) -> None:
        """See `Engine.run`; if Ray gives up, it gets the rest again, as long as some shards get done."""
        left, failures = set(job.shards), 0
        while left:
            before = len(left)
            try:
                self._run_some(job, left)
            except self._ray.exceptions.RayError as error:
                failures = failures + 1 if len(left) == before else 1
                if failures >= _RETRIES:
                    raise GenError(
                        f"Ray has given up: {_first_line(error)} What is done stays; the same call goes on."
                    ) from error
                say(f"Ray has given up, and begins again: {_first_line(error)}")

    def _run_some(self, job: Open, left: set[int]) -> None:
        """Run the shards that are left, and take out those that are done."""
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        has, needs = self._ray.cluster_resources(), self._resources()
        most = min(len(left), *(int(has.get(_NAMES[name], 0) / count) for name, count in needs.items()))
        settings = json.dumps([job.manifest.settings, self._device(), job.manifest.threads])
        shards = data.from_items([{"shard": number} for number in sorted(left)], override_num_blocks=len(left))
        results = shards.map_batches(
            Shards,
            fn_constructor_args=(settings, str(job.folder), job.digest),
            batch_size=1,
            compute=data.ActorPoolStrategy(min_size=1, max_size=max(1, most)),
            ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": _RETRIES},
            **needs,
        )
        for row in results.iter_rows():
            job.done(row["device"], _read(row["answer"]))
            left.discard(int(row["shard"]))

    def close(self) -> None:
        """See `Engine.close`: the actors end with the driver's connection; a connection from before stays open."""
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        own = {} if self._address else {"include_dashboard": False}
        self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.WARNING, **own)
        self._connected = True
        logging.getLogger("ray.data").setLevel(logging.WARNING)

    def _resources(self) -> dict[str, float]:
        """The resources of an actor."""
        gpu = self._ray.cluster_resources().get("GPU", 0) >= 1
        return {"num_cpus": 1, "num_gpus": 1} if gpu else {"num_cpus": 1}

    def _device(self) -> str:
        """The device on which an actor loads the model: the only GPU that Ray lets it see, or the CPU."""
        return "cuda:0" if "num_gpus" in self._resources() else "cpu"


class Shards:
    """An actor of Ray Data's that makes the part of each shard that it gets."""

    def __init__(self, settings: str, folder: str, digest: str) -> None:
        from gen.offline.worker.process import answered

        self._folder, self._digest = folder, digest
        described, device, threads = json.loads(settings)
        self._worker, _ = answered(None, {"settings": described, "device": device, "threads": threads})

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Run the shard whose number is in Ray Data's batch; returns the worker's answer as JSON."""
        import socket

        from gen.offline.worker.process import answered
        from gen.offline.worker.worker import Worker

        answer: Any = self._worker
        if isinstance(self._worker, Worker):
            task = {"shard": int(batch["shard"][0])}
            answer, fault = answered(self._worker, {"folder": self._folder, "digest": self._digest, "task": task})
            if fault:
                raise SystemExit(answer["fault"])  # Ray restarts the actor
        return {"shard": batch["shard"], "device": [socket.gethostname()], "answer": [json.dumps(answer)]}


_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


def _check(asked: str) -> str:
    """Make a worker in a Ray task, and return its answer about the job."""
    from gen.offline.worker.process import answered
    from gen.offline.worker.worker import Worker

    settings, device, threads, longest = json.loads(asked)
    answer, _ = answered(None, {"settings": settings, "device": device, "threads": threads})
    if isinstance(answer, Worker):
        answer, _ = answered(answer, {"check": longest, "devices": []})
    return json.dumps(answer)


def _read(told: str) -> Answer:
    return read_answer(json.loads(told))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
