"""A worker without a process of its own, and jobs of a few rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gen.offline.executors.processes import Answer, WorkerDied, read_answer
from gen.offline.folder import read_manifest
from gen.offline.worker import Answers


class WorkerHere:
    """A `gen.offline.executors.processes.Worker` in the test's process.

    Attributes:
        deadly: the ids of rows at which it dies.
        dead_devices: the devices on which any task kills it.
    """

    deadly: frozenset[str] = frozenset()
    dead_devices: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._answers = Answers()
        self._device: Any = None

    def ask(self, **asked: Any) -> Answer:
        self._device = asked.get("device", self._device)
        if "task" in asked and (self._device in self.dead_devices or self._kills(**asked)):
            raise WorkerDied("was killed by SIGKILL")
        return read_answer(self._answers.answer(json.loads(json.dumps(asked))))

    def _kills(self, folder: str, task: Mapping[str, Any], **_: Any) -> bool:
        """Whether a row of a task kills the worker."""
        rows = read_manifest(Path(folder))[0].rows_of(Path(folder), task["part"], task["row"])
        return any(row.id in self.deadly for row in rows)

    def end(self) -> None:
        self._answers = Answers()


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_parts(parts: Sequence[Path]) -> list[dict[str, Any]]:
    """The results of parts."""
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
