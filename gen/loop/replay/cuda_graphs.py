"""CUDA graphs: a step's kernels, captured once and launched again by one call of the host.

A step that can be replayed (see `gen.loop.replay.recording`) can be captured: it has no arguments, reads and writes
tensors that stay where they are, and all that differs from step to step is counted on the device. A replay then costs
the host a few microseconds instead of hundreds of launches. The ring's slots, which leave the device, are copied
outside the graph, on another stream.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from gen.loop.memory import is_out_of_memory
from gen.loop.replay.host_calls import host_call, on_host_call

_ONE_AT_A_TIME = RLock()  # torch's records of captures are not made for several threads


class Graph:
    """A captured step; calling it launches the step on the current stream. Host sync: none.

    Args:
        parts: replays of the graphs that it was captured in, and the functions that run between them.
        graph: the last of those graphs.
        rests_on: the tensors that the graphs read and write, which must not be freed before them.

    Attributes:
        nbytes: how many bytes its capture has added to the memory in which graphs of its pool compute.
    """

    def __init__(
        self,
        parts: Sequence[Callable[[], None]],
        graph: torch.cuda.CUDAGraph,
        rests_on: Sequence[object],
        nbytes: int,
    ) -> None:
        self._parts, self.graph, self._rests_on, self.nbytes = parts, graph, rests_on, nbytes

    def __call__(self) -> None:
        for part in self._parts:
            part()


class CaptureFailed(Exception):
    """CUDA or a library refused to capture a step that may be captured."""


def capture(step: Callable[[], None], rests_on: Sequence[object], others: Iterable[object]) -> Graph:
    """Capture a step on the current stream, which must not be the default one; the step does not run.

    The step must have run on this stream before, so that kernels are compiled and libraries have their workspaces.
    No garbage is collected meanwhile: it could free memory of another graph, or of the one that is captured.

    Args:
        step: takes no arguments, and was accepted by `gen.loop.replay.recording.record`.
        rests_on: the tensors that `record` saw in it.
        others: recordings of the same set of rows. Graphs among them share their memory with the new one. This is safe,
            because no two of them run at once, and what a graph gives to the next step is in other memory.
    Raises:
        CaptureFailed: the capture was refused. The others must not be launched any more, and no step may be captured
            beside them, because the memory that they share is left open. Everything else that torch leaves open is
            closed.
        Exception: memory is out, see `gen.loop.memory.is_out_of_memory`; with the same consequences.
    Host sync: none; `torch.cuda.graph` would wait, collect garbage and give back all cached memory, each time.
    """
    pool = next((other.graph.pool() for other in others if isinstance(other, Graph)), None)
    pool = pool or torch.cuda.graph_pool_handle()
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    capture = _Capture(pool)
    try:
        with _ONE_AT_A_TIME, on_host_call(capture.leave_to_host), _no_garbage_collection():
            capture.begin()
            try:
                step()
            finally:
                capture.end()
    except Exception as error:  # from CUDA, from a library, or from something that a step must not do in a capture
        reason = error.__context__ or error  # the error of the step, not the one from ending a broken capture
        mended = _clean_up(pool)
        if is_out_of_memory(reason):
            raise reason from None
        raise CaptureFailed(f"CUDA refused to capture it: {reason}{mended}") from error
    after = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    nbytes = max(0, *(late - early for early, late in zip(before, after, strict=True)))
    return Graph(capture.parts, capture.graph, rests_on, nbytes)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep garbage collection off in the block, in all threads."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Capture:
    """A step's graphs: one, or several if users' functions run between them.

    Attributes:
        graph: the last one.
        parts: replays of the graphs, and the functions that run between them.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.parts: list[Callable[[], None]] = []

    def begin(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False):  # in it, graphs outside it could not use torch's generator any more
            # other threads may do anything meanwhile
            self.graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self.graph.capture_end()
        self.parts.append(self.graph.replay)

    def leave_to_host(self, function: Callable[..., object], args: Sequence[object], results: Sequence[Tensor]) -> None:
        """Leave out a user's function that would run here: it runs at each replay instead, on the same tensors."""
        self.end()
        self.parts.append(partial(host_call, function, *args, results=results))
        self.begin()


def _clean_up(pool: Any) -> str:
    """Close what torch leaves open when CUDA refuses to end a capture; return why it stays open, or "".

    If it stayed open, torch's allocator would give no memory back, and its generator could not draw. The allocator has
    functions that end the capture; a small capture that ends well, in other memory, repairs the generator.
    Source: CUDAGraph::capture_end, which raises before it does either.
    """
    end, release = (getattr(torch.cuda.memory, f"_cuda_{name}", None) for name in ("endAllocateToPool", "releasePool"))
    if end is not None and release is not None:
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # it has ended already
            end(device, pool)
            release(device, pool)
    try:
        number = torch.zeros(1, device="cuda")
        small = _Capture(torch.cuda.graph_pool_handle())
        with _ONE_AT_A_TIME, _no_garbage_collection():
            small.begin()
            number.add_(1)
            small.end()
    except Exception as error:
        return f"; afterwards not even a small capture ended well: {error}"
    return ""
