"""CUDA graphs of virtual GPUs: a graph keeps the operators of a capture, and a replay repeats them on the same memory.

As on CUDA, a capture changes nothing: at its end, memory that they wrote is restored, and so are generators. A capture
refuses what CUDA refuses there: the default stream, and anything that makes the host wait. Such a capture ends with an
error, with the same effects as in torch: the device's generator draws nothing before another capture has ended well,
and no capture can use the memory pool again.
Source: CUDAGraph::capture_end of torch 2.11, which raises before it notifies the generator and the allocator of pinned
memory.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from virtual_gpus.call_sites import CallSite
from virtual_gpus.calls.storages import on_host
from virtual_gpus.cuda import races
from virtual_gpus.cuda.generators import identity, is_virtual_generator
from virtual_gpus.cuda.streams_and_events import StreamContext, VirtualStream, current_stream
from virtual_gpus.machine import machine
from virtual_gpus.plain_tensors import plain
from virtual_gpus.rules.op_rule import rule_of
from virtual_gpus.syncs import SyncReport, listening, not_reported, report_sync
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu

Handle = tuple[int, int]
_numbers = count(1)


class _Pool:
    """Memory of graphs; it exists as long as one of them does."""


_pools: WeakValueDictionary[Handle, _Pool] = WeakValueDictionary()
_used: set[Handle] = set()  # handles of pools that exist or did
_left_open: set[Handle] = set()  # handles of pools in which a capture has failed


def graph_pool_handle() -> Handle:
    """torch.cuda.graph_pool_handle: names a pool that does not exist yet."""
    return (0, next(_numbers))


def is_capturing() -> bool:
    """torch.cuda.is_current_stream_capturing."""
    return machine().captured is not None


class VirtualGraph:
    """torch.cuda.CUDAGraph on a virtual GPU.

    A replay calls the capture's operators again, and writes the results into the tensors that they returned in the
    capture. It draws new random numbers.

    Attributes:
        broken: whether its capture has refused something.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self.broken = False
        self._generators: list[torch.Generator] = []
        self._calls: list[tuple[Callable[..., Any], Any, Any, Any]] | None = None
        self._pool: _Pool | None = None

    def capture_begin(
        self, pool: Handle | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Keep the calls of this thread from now on; its current stream must not be the default one."""
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(f"Unknown capture error mode: {capture_error_mode}")
        if current_stream().is_default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        machine().refuse_capture("another capture")
        handle = pool or graph_pool_handle()
        if handle in _used and handle not in _pools:
            raise RuntimeError("the graphs of this memory pool are gone, and it with them: take a new handle.")
        if handle in _left_open:
            raise RuntimeError(f"already recording to mempool_id {handle}")
        _used.add(handle)
        self._pool = _pools.setdefault(handle, _Pool())
        self._handle = handle
        self._capture = _Capture(self._generators)
        self._capture.begin()
        self._begun = races.capture_begins(current_stream().key)
        machine().captured = self

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let calls of the capture draw from a generator of yours; a GPU's own needs none."""
        self._generators.append(generator)

    def capture_end(self) -> None:
        """Make the graph of the calls that were kept, and restore the tensors that they wrote."""
        owner = machine()
        if owner.captured is not self:
            raise RuntimeError("capture_end was called without capture_begin in this thread.")
        owner.captured = None
        self._inference = torch.is_inference_mode_enabled()
        self._capture.end()
        races.capture_ends(*self._begun)
        if self.broken:
            owner.stuck.add(owner.current)
            _left_open.add(self._handle)
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        owner.stuck.discard(owner.current)
        self._calls = self._capture.calls

    def replay(self) -> None:
        """Make the calls again."""
        if self._calls is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        with torch.inference_mode(self._inference), torch.no_grad():
            for function, args, kwargs, made in self._calls:
                found = function(*args, **kwargs)
                if made:
                    _write(made, found)

    def reset(self) -> None:
        """Drop what was captured."""
        self._calls = self._pool = None

    def pool(self) -> Handle:
        """The handle of its memory pool, which other graphs may share."""
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._handle


class GraphContext:
    """torch.cuda.graph: captures the block. Host sync: one at its start."""

    def __init__(
        self,
        cuda_graph: VirtualGraph,
        pool: Handle | None = None,
        stream: VirtualStream | None = None,
        capture_error_mode: str = "global",
        **options: object,
    ) -> None:
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._stream = StreamContext(stream or VirtualStream())

    def __enter__(self) -> None:
        report_sync("torch.cuda.graph")
        self._stream.__enter__()
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *exception: Any) -> None:
        self._graph.capture_end()
        self._stream.__exit__(*exception)


class _Capture:
    """Between the begin and the end of a capture: keeps operators, the memory that they overwrite, and generators."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._states = [(one, one.get_state()) for one in (*machine().generators, *generators)]
        self._operators = _Operators({identity(one) for one, _ in self._states})
        self.calls = self._operators.calls
        self._contexts: tuple[Any, ...] = (listening(_Refusal(counting=True)), self._operators)

    def begin(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def end(self) -> None:
        for context in reversed(self._contexts):
            context.__exit__(None, None, None)
        self._operators.undo()
        for generator, state in self._states:
            generator.set_state(state)


class _Refusal(SyncReport):
    """Gets all host syncs, and refuses those of the thread that captures."""

    def add(self, what: str, site: CallSite | None) -> None:
        machine().refuse_capture(what)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operator on the GPU, and the memory that it overwrites."""

    def __init__(self, generators: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule, own = rule_of(func), kwargs.get("generator")
        if own is not None and is_virtual_generator(own) and identity(own) not in self._generators:
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
        given = _tensors([args, kwargs])
        with_gpu = any(type(tensor) is VirtualTensor for tensor in given)
        for name, _, tensor in rule.tensors(args, kwargs) if with_gpu else ():
            if name in rule.written:
                storage = plain(tensor).untyped_storage()
                if storage.data_ptr() not in self._before:
                    self._before[storage.data_ptr()] = storage, on_host(storage)
        made = func(*args, **kwargs)
        found = _tensors(made)
        if with_gpu or any(type(tensor) is VirtualTensor for tensor in found):  # a graph holds no work of the host
            old = {_storage(tensor) for tensor in given}
            new = [None if _storage(tensor) in old else _memory(tensor) for tensor in found]
            written = new if any(one is not None for one in new) else []
            self.calls.append((func, _memory(args), _memory(kwargs), written))
        return made

    def undo(self) -> None:
        """Restore the memory to before the first write."""
        with not_reported():
            for storage, before in self._before.values():
                storage.copy_(before)


def _memory(value: Any) -> Any:
    """A call's arguments, with tensors that keep the memory of now even if `.data =` gives others later."""
    return tree_map_only(VirtualTensor, lambda tensor: on_gpu(plain(tensor).detach(), tensor._gpu), value)


def _write(made: Sequence[Tensor | None], again: object) -> None:
    """Copy a call's new results into the tensors that it returned in the capture; None are those that are not new."""
    for old, new in zip(made, _tensors(again), strict=True):
        if old is not None:
            old.copy_(new)


def _storage(tensor: Tensor) -> int:
    return plain(tensor).untyped_storage().data_ptr()


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
