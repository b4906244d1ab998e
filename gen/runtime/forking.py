"""What a forked process makes anew: locks, and torch's pool of threads.

If another thread holds a plain lock at the fork, the lock stays taken for ever in the new process, because that thread
does not run there.
"""

import os
import warnings
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch

_locks: WeakSet[Any] = WeakSet()
_stale_threads = False


def new_lock(make: Callable[[], Any] = Lock) -> Any:
    """A lock of `threading` that is free in every forked process."""
    lock = make()
    _locks.add(lock)
    return lock


def renew_threads() -> None:
    """Let torch replace the pool of threads that a fork has left behind, if this process was forked.

    Where `torch.set_num_threads` was called, the first threads that compute replace it. Two at once, such as those that
    load weights, fail with "Invalid thread pool!": one finds none while the other makes it.
    """
    global _stale_threads
    if _stale_threads:
        _stale_threads = False
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # "Leaking Caffe2 thread-pool after fork."
            torch.set_num_threads(torch.get_num_threads())


def _forked() -> None:
    global _stale_threads
    _stale_threads = True
    for lock in list(_locks):
        lock._at_fork_reinit()  # logging and concurrent.futures do the same with their locks


os.register_at_fork(after_in_child=_forked)
