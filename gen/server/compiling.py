"""Compiles clients' schemas in processes of their own: they take neither the server's time nor its memory.

One process has the vocabulary, and forks for each schema, so that none takes memory from the next. A fork's memory and
its processor time are limited; after one second of processor time it lowers its priority.
"""

import asyncio
import os
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pickle import dumps, loads
from threading import Lock
from types import FrameType, ModuleType
from typing import Any

import torch

from gen.constraints.compiling import Worked, carry_out, compiled_before, portable, read_type, work_out
from gen.constraints.composing.trees import Calls, Tree
from gen.constraints.tables.vocabulary import Vocabulary, vocabulary_of
from gen.errors import ConstraintError, EngineClosed, GenError
from gen.models.base import Model

_AT_ONCE = 32  # how many types are compiled at once
_PATIENCE = 4  # how many seconds a type may take for each second of processor time that it may use


class Compiling:
    """Compiles output types for a model, on Linux each in its own process; types that were compiled never wait.

    Nothing waits in a thread, so a program can end while types are compiled: their processes end with its event loop.

    Args:
        seconds: of processor time that one type may take.
        memory: bytes that it may take, besides what the process has before.
    """

    def __init__(self, model: Model, *, seconds: int = 30, memory: int = 2**31) -> None:
        self._model, self._seconds, self._memory = model, seconds, memory
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._asking = Lock()
        self._process: Any = None
        self._requests: Connection | None = None
        self._running: dict[Any, asyncio.Task[None]] = {}  # by the key of the plan that is compiled

    def begin(self) -> None:
        """Start the process from which others are forked, so that the first type does not wait for it."""
        if sys.platform == "linux":
            with self._asking:
                self._begin()

    async def ready(self, output_type: Any) -> None:
        """Wait until a type is compiled. If nobody waits any more, it is still compiled, for those who ask later.

        Raises:
            ConstraintError: the type cannot be compiled, or takes more time or memory than it may.
            EngineClosed: `close` was called.
        """
        if output_type is None or compiled_before(self._model, output_type) is not None:
            return
        plan = read_type(self._model, output_type)
        task = self._running.get(plan.key)
        if task is None:
            task = self._running[plan.key] = asyncio.create_task(self._compile(plan))
            task.add_done_callback(partial(self._forget, plan.key))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise EngineClosed("the server ends, and compiles no more types.") from None
            raise

    def close(self) -> None:
        """Stop compiling, and end the processes."""
        with self._asking:
            if self._requests is not None:
                self._requests.close()
                self._requests = None
        for task in list(self._running.values()):
            task.cancel()

    def _forget(self, key: Any, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    async def _compile(self, plan: Tree | Calls) -> None:
        async with self._at_once:
            worked = await self._worked(plan) if sys.platform == "linux" else None
            await asyncio.to_thread(carry_out, self._model, plan, worked)

    async def _worked(self, plan: Tree | Calls) -> Worked:
        """The result of a process that compiles a plan; the process ends if nobody waits for it."""
        results, written = get_context("spawn").Pipe(duplex=False)
        with results:
            try:
                sent = dumps(portable(plan))
            except RecursionError:
                raise ConstraintError("the output type nests too deep to be compiled; fewer levels do.") from None
            await asyncio.to_thread(self._ask, sent, written)
            found, number = None, 0
            try:
                await _readable(results)
                number = results.recv()
                async with asyncio.timeout(_PATIENCE * self._seconds):
                    await _readable(results)
                    found = await asyncio.to_thread(results.recv)  # it may be large
            except (EOFError, OSError, TimeoutError):  # its limits have ended it, or it waits for the processor
                pass
            finally:
                if number and found is None:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
        if isinstance(found, Worked):
            return found
        if not number:
            raise RuntimeError("the process that compiles types has ended before it came to this one.")
        raise found or ConstraintError(
            f"the output type takes more than {self._seconds} seconds or {self._memory >> 20} MiB to compile; give a "
            "smaller one."
        )

    def _ask(self, plan: bytes, written: Connection) -> None:
        """Have a process start that compiles a plan; `written` is the end of a pipe to which it writes its result."""
        with self._asking, written:
            if self._requests is None or not self._process.is_alive():
                self._begin()
            assert self._requests is not None  # tells mypy
            self._requests.send_bytes(plan)
            send_handle(self._requests, written.fileno(), self._process.pid)

    def _begin(self) -> None:
        context = get_context("spawn")
        self._requests, theirs = context.Pipe()
        self._process = context.Process(target=compile_for, args=(theirs, self._seconds, self._memory), daemon=True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process alone
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing would run the program again
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = program
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._requests.send(vocabulary_of(self._model))  # an argument would leave half of it where this process ends


async def _readable(results: Connection) -> None:
    """Wait until something has come, or nothing will."""
    loop, number = asyncio.get_running_loop(), results.fileno()
    comes = asyncio.Event()
    loop.add_reader(number, comes.set)
    try:
        await comes.wait()
    finally:
        loop.remove_reader(number)
        os.set_blocking(number, True)  # uvloop's readers end that, and what comes next may come in pieces


def compile_for(requests: Connection, seconds: int, memory: int) -> None:
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
            _compile(plan, vocabulary, seconds, memory, Connection(handle, readable=False))
        finally:
            os._exit(0)


def _compile(plan: bytes, vocabulary: Vocabulary, seconds: int, memory: int, results: Connection) -> None:
    results.send(os.getpid())
    import resource  # Linux has it

    memory += _address_space(resource.getpagesize())
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGPROF, _step_back)
    signal.setitimer(signal.ITIMER_PROF, 1.0)
    try:
        found = work_out(loads(plan), vocabulary)
    except MemoryError:
        results.send(None)
    except GenError as error:
        results.send(ConstraintError(str(error)))
    except Exception as error:  # a fault of gen's, or of the machine: no client's type is to blame
        traceback.print_exc()
        results.send(RuntimeError(f"{type(error).__name__} while a type was compiled: {error}"))
    else:
        results.send(found)


def _step_back(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.nice(10)


def _address_space(page: int) -> int:
    """How many bytes this process has mapped."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * page
