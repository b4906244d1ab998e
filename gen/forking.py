"""Locks that a forked process can take.

If another thread holds a plain lock at the fork, the lock stays taken for ever in the new process, because that thread
does not run there.
"""

import os
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock(make: Callable[[], Any] = Lock) -> Any:
    """A lock of `threading` that is free in every forked process."""
    lock = make()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # logging and concurrent.futures do the same with their locks


os.register_at_fork(after_in_child=_free_all)
