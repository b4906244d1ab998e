"""`no_host_sync`: finds where the host waits for the device, on virtual GPUs and on real ones.

On virtual GPUs the rules of this package report each wait. On real CUDA torch.cuda.set_sync_debug_mode does, which
virtual GPUs have too: it warns of a host sync, or raises.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from virtual_gpus import DeviceError, HostSyncError, faults
from virtual_gpus.call_sites import CallSite, call_site, describe
from virtual_gpus.machine import active_machine


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


_listeners: list["SyncReport | DebugMode"] = []  # each gets every host sync
_local = threading.local()


def report_sync(what: str) -> None:
    """Tell every listener that the host waits here for `what`.

    Raises:
        HostSyncError: a listener does not allow it; then the operation must not run.
    """
    if faults.active:
        faults.host_waited()
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


def listen(listener: "SyncReport | DebugMode") -> None:
    _listeners.append(listener)


def unlisten(listener: "SyncReport | DebugMode") -> None:
    _listeners[:] = [other for other in _listeners if other is not listener]


@contextmanager
def not_reported() -> Iterator[None]:
    """Report no host syncs of this thread in the block."""
    _local.allowed = getattr(_local, "allowed", 0) + 1
    try:
        yield
    finally:
        _local.allowed -= 1


_MODES = {"default": 0, "warn": 1, "error": 2}
_MESSAGE = "called a synchronizing CUDA operation"


class DebugMode:
    """A listener to host syncs; like CUDA's, it ignores explicit ones, such as torch.cuda.synchronize."""

    def __init__(self) -> None:
        self.mode = 0

    def add(self, what: str, site: CallSite | None) -> None:
        if "synchronize" in what:
            return
        if self.mode == 2:
            raise RuntimeError(_MESSAGE)
        warnings.warn(_MESSAGE, UserWarning, stacklevel=4)


_mode = DebugMode()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """torch.cuda.set_sync_debug_mode."""
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _MODES[debug_mode]
    _mode.mode = debug_mode
    unlisten(_mode)
    if debug_mode:
        listen(_mode)


def get_sync_debug_mode() -> int:
    return _mode.mode


@contextmanager
def _listening_to_cuda(report: SyncReport) -> Iterator[None]:
    """Report the host syncs of real CUDA in the block, in all threads; the debug mode is restored afterwards.

    The debug mode warns of a sync, and its warnings are reported. This block watches what the debug mode ignores:
    torch.cuda.synchronize, torch.accelerator.synchronize and Stream.synchronize. It cannot know whether an event has
    passed when the host waits for it, so such a wait counts as free.
    """
    watched = (
        (torch.cuda, "synchronize", "torch.cuda.synchronize"),
        (torch.accelerator, "synchronize", "torch.accelerator.synchronize"),
        (torch.cuda.Stream, "synchronize", "Stream.synchronize"),
    )
    mode = torch.cuda.get_sync_debug_mode()
    originals = [getattr(owner, name) for owner, name, _ in watched]
    with listening(report), warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_MESSAGE}")
        warnings.showwarning = _reporting(warnings.showwarning)
        try:
            for (owner, name, shown), original in zip(watched, originals, strict=True):
                setattr(owner, name, _watched(original, shown))
            torch.cuda.set_sync_debug_mode("warn")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            for (owner, name, _), original in zip(watched, originals, strict=True):
                setattr(owner, name, original)


@contextmanager
def _not_listening_to_cuda() -> Iterator[None]:
    """Report no host syncs of real CUDA in the block."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _reporting(shown: Callable[..., Any]) -> Callable[..., Any]:
    """warnings.showwarning that reports the debug mode's warnings and shows the others."""

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if _MESSAGE in str(message):
            report_sync("a synchronizing operation")
        else:
            shown(message, *args, **kwargs)

    return show


def _watched(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    """A function that waits; it is reported once, and not a second time by the debug mode."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        report_sync(shown)
        with _not_listening_to_cuda():
            return function(*args, **kwargs)

    return watched


@contextmanager
def no_host_sync(*, count: bool = False) -> Iterator[SyncReport]:
    """In the block, a host sync raises, or is counted. A host sync makes the host wait for work just issued.

    On virtual GPUs, whose block must be open already, the rules of this package decide; on real CUDA those of
    `torch.cuda.set_sync_debug_mode`. It holds for all threads. See docs/virtual_gpus.md for what counts.

    Args:
        count: only count; otherwise the first sync raises before it happens.
    Yields:
        The report, which stays readable after the block.
    Raises:
        DeviceError: there is neither a virtual GPU nor a real one, so nothing could be found.
        HostSyncError: from within the block, at the sync.
    """
    report = SyncReport(counting=count)
    with ExitStack() as contexts:
        if active_machine() is not None:
            contexts.enter_context(listening(report))
        elif torch.cuda.is_available():
            contexts.enter_context(_listening_to_cuda(report))
        else:
            raise DeviceError(
                "no_host_sync found neither a CUDA device nor virtual ones: enter virtual_gpus.virtual_gpus() first."
            )
        yield report


@contextmanager
def allowed() -> Iterator[None]:
    """In the block, host syncs of this thread are not reported; on real CUDA, those of no thread are."""
    with ExitStack() as contexts:
        contexts.enter_context(not_reported())
        if active_machine() is None and torch.cuda.is_available():
            contexts.enter_context(_not_listening_to_cuda())
        yield
