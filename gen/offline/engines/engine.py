"""What an engine is: where a job's workers are, and how they get its shards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gen.offline.engines.processes import Answer
from gen.offline.engines.schedule import Work
from gen.offline.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Open:
    """What of a job is to be done.

    Attributes:
        folder: the job's.
        manifest: and its sha256, `digest`.
        shards: how many rows each shard has that is open, by its number.
        done: called with what a worker on a device has done, and its answer.
        joined: called with a shard that was halved, when all of its rows are done.
        blame: called with a row that gets an error, and why.
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
        """What a first worker says of a job; see `gen.offline.worker.worker.Worker.check`.

        Args:
            longest: the row with the longest prompt.
        Raises:
            ArgumentError, GenError: the job cannot be run, or no device is left.
        """

    def run(self, job: Open) -> None:
        """Run all that is open.

        Raises:
            Exception: what ended the job before its end.
        """

    def close(self) -> None:
        """Let all workers end."""
