"""`no_host_sync`: finds where the host waits for the device, on virtual GPUs and on real ones."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from virtual_gpus.errors import DeviceError
from virtual_gpus.machine import active_machine
from virtual_gpus.syncs import real_cuda
from virtual_gpus.syncs.reports import SyncReport, listening, not_reported


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
            contexts.enter_context(real_cuda.listening(report))
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
            contexts.enter_context(real_cuda.not_listening())
        yield
