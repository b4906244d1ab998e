"""What the steps of `make gpu` share: their arguments, and a report that keeps all results, errors too."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import read_arguments, write_json

DEVICE = torch.device("cuda", 0)


@dataclass
class Report:
    """What a step has found so far, by name; written to its file at each change.

    Attributes:
        failed: whether something failed.
    """

    path: Path
    found: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    def add(self, name: str, find: Callable[[], Any]) -> None:
        """Add the result of `find` under a name; see `tried`."""
        self.found[name] = self.tried(find)
        print(f"{name}: {self.found[name]}", flush=True)
        write_json(self.path, self.found)

    def tried(self, find: Callable[[], Any]) -> Any:
        """The result of `find`, or its error as a text. An error fails the step, unless only memory was out."""
        try:
            return find()
        except Exception as error:
            if not isinstance(error, torch.OutOfMemoryError):
                self.failed = True
                traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"[:500]}


@dataclass(frozen=True)
class Given:
    """A step's arguments."""

    out: Path
    report: Report
    small: bool
    device: torch.device


def read(description: str | None) -> Given:
    """The arguments of a step."""
    required = {"type": Path, "required": True}
    given = read_arguments(description, out=(required, "the folder of the report"), small=False)
    return Given(given.out, Report(given.json), given.small, DEVICE)


def has_room(nbytes: int, device: torch.device) -> bool:
    """Whether `nbytes` is at most half of the free memory."""
    torch.cuda.empty_cache()
    return nbytes <= torch.cuda.mem_get_info(device)[0] // 2
