"""Host syncs of real CUDA devices, found with torch.cuda.set_sync_debug_mode."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from virtual_gpus.syncs.reports import SyncReport, report_sync
from virtual_gpus.syncs.reports import listening as to_listeners

_MESSAGE = "called a synchronizing CUDA operation"


@contextmanager
def listening(report: SyncReport) -> Iterator[None]:
    """Report the host syncs of the block, in all threads; the debug mode is restored afterwards.

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
    with to_listeners(report), warnings.catch_warnings():
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
def not_listening() -> Iterator[None]:
    """Report no host syncs in the block."""
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
        with not_listening():
            return function(*args, **kwargs)

    return watched
