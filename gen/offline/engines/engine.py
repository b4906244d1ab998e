"""The interface of an engine, which has a job's workers and hands its shards to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gen.offline.engines.processes import Answer
from gen.offline.engines.schedule import Work
from gen.offline.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Open:
    """The open part of a job.

    Attributes:
        folder: the job's.
        manifest, digest: the manifest, and its sha256.
        shards: the open shards: how many rows each has, by its number.
        done: called with the device of a worker that has done work, and its answer.
        joined: called with a shard that was halved, when all of its rows are done.
        blame: called with a row that gets an error, and the reason.
    """

    folder: Path
    manifest: Manifest
    digest: str
    shards: Mapping[int, int]
    done: Callable[[str, Answer], object]
    joined: Callable[[int], object]
    blame: Callable[[Work, str], object]


class Engine(Protocol):
    """Where a job's workers are."""

    def threads(self) -> int:
        """How many threads of torch each worker on a CPU has, if a job begins now."""

    def check(self, settings: Mapping[str, Any], threads: int, longest: Mapping[str, Any] | None) -> Answer:
        """The answer of a first worker that checks a job; see `gen.offline.worker.worker.Worker.check`.

        Args:
            longest: the row with the longest prompt.
        Raises:
            ArgumentError, GenError: the job cannot be run, or no device is left.
        """

    def run(self, job: Open) -> None:
        """Run all open shards.

        Raises:
            Exception: the error that stopped the job before its end.
        """

    def close(self) -> None:
        """Let all workers end."""
