"""Compiles clients' schemas in processes of their own: they take neither the server's time nor its memory."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pickle import dumps
from threading import Lock
from typing import Any

from gen.constraints.compiling import Worked, carry_out, compiled_before, portable, read_type
from gen.constraints.composing.trees import Told, Tree
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.errors import ConstraintError
from gen.models.base import Model
from gen.server.settings import CompileLimits

_AT_ONCE = 32  # how many types are compiled at once
_PATIENCE = 4  # how many seconds a type may take for each second of processor time that it may use


class Compiling:
    """Compiles output types for a model, on Linux each in its own process; types that were compiled never wait.

    Args:
        limits: the processor time and the memory that one type may take.
    """

    def __init__(self, model: Model, limits: CompileLimits | None = None) -> None:
        self._model, self._limits = model, limits or CompileLimits()
        self._waiters = ThreadPoolExecutor(_AT_ONCE, "gen compiles")
        self._asking = Lock()
        self._process: Any = None
        self._requests: Connection | None = None
        self._running: dict[Any, Future[None]] = {}  # by the key of the plan that is compiled
        self._compiling: set[int] = set()  # the ids of processes

    def begin(self) -> None:
        """Start the process from which others are forked, so that the first type does not wait for it."""
        if sys.platform == "linux":
            with self._asking:
                self._begin()

    async def ready(self, output_type: Any) -> None:
        """Wait until a type is compiled.

        Raises:
            ConstraintError: the type cannot be compiled, or takes more time or memory than it may.
        """
        if output_type is None or compiled_before(self._model, output_type) is not None:
            return
        plan = read_type(self._model, output_type)
        plans: list[Tree | Told] = [plan]
        if isinstance(plan, Told) and plan.begun is not None:  # for prompts that have begun a thought
            plans.append(replace(plan, written=plan.begun))
        for one in plans:
            future = self._running.get(one.key)
            if future is None:
                future = self._running[one.key] = self._waiters.submit(self._compile, one)
                future.add_done_callback(self._forget(one.key))
            await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Stop compiling, and end the processes."""
        with self._asking:
            if self._requests is not None:
                self._requests.close()
                self._requests = None
        for number in list(self._compiling):
            _kill(number)
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def _forget(self, key: Any) -> Callable[[object], object]:
        return lambda _: self._running.pop(key, None)

    def _compile(self, plan: Tree | Told) -> None:
        carry_out(self._model, plan, self._worked(plan) if sys.platform == "linux" else None)

    def _worked(self, plan: Tree | Told) -> Worked:
        """The result of a process that compiles a plan."""
        context = get_context("spawn")
        results, written = context.Pipe(duplex=False)
        with results:
            self._ask(dumps(portable(plan)), written)
            limits, found = self._limits, None
            number = 0
            try:
                number = results.recv()
                self._compiling.add(number)
                if results.poll(_PATIENCE * limits.seconds):
                    found = results.recv()
            except (EOFError, OSError):  # the process was ended by its limits, or by `close`
                pass
            finally:
                self._compiling.discard(number)
        if isinstance(found, Worked):
            return found
        if number:
            _kill(number)
        raise found or ConstraintError(
            f"the output type takes more than {limits.seconds} seconds or {limits.memory >> 20} MiB to compile; give a "
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
        from gen.server.compile_process import compile_for  # it needs Linux

        context = get_context("spawn")
        self._requests, theirs = context.Pipe()
        vocabulary = vocabulary_of(self._model)
        self._process = context.Process(target=compile_for, args=(theirs, vocabulary, self._limits), daemon=True)
        self._process.start()
        theirs.close()


def _kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
