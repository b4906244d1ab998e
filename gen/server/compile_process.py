"""The process that compiles clients' schemas: it forks for each schema, so that none takes memory from the next.

A fork has the vocabulary already. Its memory and its processor time are limited. After one second of processor time it
lowers its priority.
"""

import os
import resource
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pickle import loads
from types import FrameType

import torch

from gen.constraints.compiling import work_out
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError, GenError
from gen.server.settings import CompileLimits


def compile_for(requests: Connection, limits: CompileLimits) -> None:
    """Fork for each plan that comes after the vocabulary, until no more come; with it comes where its result goes."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks to end
    vocabulary: Vocabulary | None = None
    while True:
        try:
            if vocabulary is None:
                vocabulary = requests.recv()
            plan = requests.recv_bytes()
            handle = recv_handle(requests)
        except (EOFError, OSError):  # the server is gone
            return
        if os.fork():
            os.close(handle)
            continue
        try:
            _compile(plan, vocabulary, limits, Connection(handle, readable=False))
        finally:
            os._exit(0)


def _compile(plan: bytes, vocabulary: Vocabulary, limits: CompileLimits, results: Connection) -> None:
    results.send(os.getpid())
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + limits.memory, used + limits.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
    signal.signal(signal.SIGPROF, _step_back)
    signal.setitimer(signal.ITIMER_PROF, 1.0)
    try:
        found = work_out(loads(plan), vocabulary)
    except MemoryError:
        results.send(None)
    except GenError as error:
        results.send(ConstraintError(str(error)))
    else:
        results.send(found)


def _step_back(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.nice(10)


def _address_space() -> int:
    """How many bytes this process has mapped."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
