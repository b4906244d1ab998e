"""Reports of host syncs: the listeners, and the report that a listener keeps."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from virtual_gpus.call_sites import CallSite, call_site, describe
from virtual_gpus.errors import HostSyncError


@dataclass(kw_only=True)
class SyncReport:
    """The host syncs of one `no_host_sync` block, in all threads.

    Attributes:
        counting: whether a sync is only counted; otherwise it also raises.
    """

    counting: bool
    _counts: Counter[tuple[str, CallSite | None]] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many host syncs there were."""
        return self._counts.total()

    @property
    def by_line(self) -> dict[str, int]:
        """How many at each "op at file:line in function", most frequent first."""
        lines: Counter[str] = Counter()
        for (what, site), count in self._counts.items():
            lines[f"{what} at {describe(site)}"] += count
        return dict(lines.most_common())

    def add(self, what: str, site: CallSite | None) -> None:
        """Count a sync.

        Raises:
            HostSyncError: unless this report only counts.
        """
        self._counts[what, site] += 1
        if not self.counting:
            raise HostSyncError(
                f"host sync: {what} at {describe(site)}.\n"
                "The host waits there for work that it has just given to the device. Keep the value on the device, "
                "copy it to pinned memory with non_blocking=True and read it after a later step, or mark the block "
                "with virtual_gpus.allowed()."
            )

    def __str__(self) -> str:
        if not self.count:
            return "no host syncs"
        lines = "\n".join(f"  {count} x {line}" for line, count in self.by_line.items())
        return f"{self.count} host syncs:\n{lines}"


class Listener(Protocol):
    """Gets every host sync."""

    def add(self, what: str, site: CallSite | None) -> None: ...


_listeners: list[Listener] = []
_local = threading.local()


def report_sync(what: str) -> None:
    """Tell every listener that the host waits here for `what`.

    Raises:
        HostSyncError: a listener does not allow it; then the operation must not run.
    """
    if _listeners and not getattr(_local, "allowed", 0):
        site = call_site()
        for listener in tuple(_listeners):
            listener.add(what, site)


@contextmanager
def listening(report: SyncReport) -> Iterator[None]:
    """Tell `report` of every host sync in the block, in any thread."""
    listen(report)
    try:
        yield
    finally:
        unlisten(report)


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    _listeners[:] = [other for other in _listeners if other is not listener]


@contextmanager
def not_reported() -> Iterator[None]:
    """Report no host syncs of this thread in the block."""
    _local.allowed = getattr(_local, "allowed", 0) + 1
    try:
        yield
    finally:
        _local.allowed -= 1
