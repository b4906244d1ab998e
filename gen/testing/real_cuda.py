"""Host syncs of real CUDA devices, by way of torch.cuda.set_sync_debug_mode."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gen.testing.errors import HostSyncError
from gen.testing.host_syncs import SyncReport, report_sync
from gen.testing.host_syncs import listening as to_listeners

_MESSAGE = "called a synchronizing CUDA operation"


@contextmanager
def listening(report: SyncReport) -> Iterator[None]:
    """Report the host syncs of the block, in all threads; the debug mode is set back afterwards.

    What the debug mode does not know is watched here: torch.cuda.synchronize and Stream.synchronize. Whether a wait for
    an event is late cannot be known, so that it counts as free.
    """
    before = torch.cuda.get_sync_debug_mode()
    synchronize, of_stream = torch.cuda.synchronize, torch.cuda.Stream.synchronize
    with to_listeners(report), warnings.catch_warnings():
        shown = warnings.showwarning
        warnings.filterwarnings("always", message=f".*{_MESSAGE}")
        warnings.showwarning = _reporting(shown)
        torch.cuda.synchronize = _watched(synchronize, "torch.cuda.synchronize")
        torch.cuda.Stream.synchronize = _watched(of_stream, "Stream.synchronize")  # type: ignore[method-assign]
        torch.cuda.set_sync_debug_mode("warn" if report.counting else "error")
        try:
            yield
        except RuntimeError as error:
            if _MESSAGE not in str(error) or isinstance(error, HostSyncError):
                raise
            raise HostSyncError(f"host sync: torch {error}; the traceback above shows where.") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)
            torch.cuda.synchronize = synchronize
            torch.cuda.Stream.synchronize = of_stream  # type: ignore[method-assign]


@contextmanager
def not_listening() -> Iterator[None]:
    """Report no host syncs in the block."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _reporting(shown: Callable[..., Any]) -> Callable[..., Any]:
    """warnings.showwarning that reports the debug mode's warnings and shows the others."""

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if _MESSAGE in str(message):
            report_sync("a synchronizing operation")
        else:
            shown(message, *args, **kwargs)

    return show


def _watched(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        report_sync(name)
        # the debug mode would report the same wait a second time
        with not_listening():
            return function(*args, **kwargs)

    return watched
