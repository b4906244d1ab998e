"""Workers as actors of a Ray cluster, each with a GPU of its own, or with a CPU where the cluster has no GPU."""

import json
import logging
import sys
from typing import Any

from gen.errors import ArgumentError
from gen.offline.executors.processes import ENVIRONMENT, Answer, Processes, Worker, WorkerDied, read_answer

logger = logging.getLogger("gen")

_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


class RayActors(Processes):
    """Workers in actors.

    Args:
        address: of the cluster, as "ray://host:10001" or "auto"; None starts one on this machine, if there is none.
    """

    threads = 1  # an actor has one CPU of Ray's
    one_machine = False

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError(
                f"the executor ray needs Ray ({error}); install it with pip install 'gen-torch[ray]'."
            ) from error
        super().__init__(None)
        self._ray, self._address = ray, address
        # Ray begins a process with an environment of its own by a line of shell in which Python's path is not quoted
        self._settings = {} if " " in sys.executable else {"runtime_env": {"env_vars": ENVIRONMENT}}
        if not self._settings:
            logger.warning(
                "the path of Python, %s, has a space, so Ray gives actors no environment: sets in values may have "
                "another order in parts that are made again",
                sys.executable,
            )
        self._connected = False

    def slots(self) -> list[str]:
        """As many as the cluster has room for now."""
        self._connect()
        has = self._ray.cluster_resources()
        most = min(int(has.get(_NAMES[name], 0) / count) for name, count in self._needs().items())
        return [f"ray:{number}" for number in range(max(1, most))]

    def worker(self, slot: str | None) -> tuple[Worker, str | None]:
        """The actor begins where and when Ray has room for it."""
        needs = self._needs()
        actor = self._ray.remote(max_restarts=0, **self._settings, **needs)(Actor).remote()
        return RayWorker(self._ray, actor), "cuda:0" if "num_gpus" in needs else "cpu"  # the only GPU that it sees

    def close(self) -> None:
        """A connection from before stays open."""
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        own = {} if self._address else {"include_dashboard": False}
        self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.WARNING, **own)
        self._connected = True

    def _needs(self) -> dict[str, int]:
        """The resources of an actor."""
        gpu = self._ray.cluster_resources().get("GPU", 0) >= 1
        return {"num_cpus": 1, "num_gpus": 1} if gpu else {"num_cpus": 1}


class Actor:
    """What runs in an actor: it answers as `gen.offline.worker` does."""

    def __init__(self) -> None:
        from gen.offline.worker import Answers

        self._answers = Answers()

    def ask(self, line: str) -> str:
        """The answer to a request, both as JSON."""
        return json.dumps(self._answers.answer(json.loads(line)))


class RayWorker:
    """See `gen.offline.executors.processes.Worker`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def ask(self, **asked: Any) -> Answer:
        try:
            answer = self._ray.get(self._actor.ask.remote(json.dumps(asked)))
        except self._ray.exceptions.RayError as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise WorkerDied(f"has died ({line})") from error
        return read_answer(json.loads(answer))

    def end(self) -> None:
        self._ray.kill(self._actor)
