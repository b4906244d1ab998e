"""Locks that a forked process can take.

A plain lock that another thread holds at the fork stays taken for ever in the new process, which lacks that thread.
"""

import os
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock(make: Callable[[], Any] = Lock) -> Any:
    """A lock of threading's that is free in every process that is forked."""
    lock = make()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the locks of logging and concurrent.futures


os.register_at_fork(after_in_child=_free_all)
