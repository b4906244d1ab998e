"""Operations on mixes of devices, and what CUDA makes of each.

The rules are torch's own. Operators that native_functions.yaml marks `device_check: NoCheck` take 0-dim CPU tensors
beside CUDA ones; all others refuse any CPU tensor, and nothing takes tensors of two GPUs. Indexing takes CPU indices.
What makes the host wait is in the CUDA kernels (aten/src/ATen/native). `test_op_table.py` holds virtual GPUs to this
table, and real ones where there are two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

GPU0, GPU1, HOST = "cuda:0", "cuda:1", "cpu"
REFUSED = "refused"


@dataclass(frozen=True)
class Operand:
    """A tensor to make: its kind, where, and its shape."""

    kind: str
    place: str
    shape: tuple[int, ...]

    def make(self, place: str | None = None) -> Tensor:
        """The tensor, in another place than its own if one is given."""
        count = int(torch.Size(self.shape).numel())
        numbers = torch.arange(count).reshape(self.shape)
        values = {"float": numbers / 8 + 0.5, "index": numbers % 2, "mask": numbers % 2 == 0, "count": numbers + 1}
        return values[self.kind].to(place or self.place)


def floats(place: str, *shape: int) -> Operand:
    return Operand("float", place, shape)


def index(place: str, *shape: int) -> Operand:
    return Operand("index", place, shape)


def mask(place: str, *shape: int) -> Operand:
    return Operand("mask", place, shape)


def counts(place: str, *shape: int) -> Operand:
    return Operand("count", place, shape)


@dataclass(frozen=True)
class Case:
    """One operation on one mix of devices.

    Attributes:
        name: of the test.
        run: the operation, on tensors.
        operands: what it is given.
        expected: the device of its result, or REFUSED.
        waits: how often the host waits for a device in it.
    """

    name: str
    run: Callable[..., Any]
    operands: tuple[Operand, ...]
    expected: str
    waits: int = 0

    @property
    def gpus(self) -> int:
        """How many GPUs it needs."""
        places = {operand.place for operand in self.operands} | {self.expected}
        return 2 if GPU1 in places else 1


def _two_places(name: str, run: Callable[..., Any], first: str, second: str, expected: str, *shapes: Any) -> Case:
    left, right = shapes or ((2, 2), (2, 2))
    return Case(f"{name}: {first} and {second}", run, (floats(first, *left), floats(second, *right)), expected)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "lt": torch.lt,
    "logical_and": torch.logical_and,
    "ne": torch.ne,
    "fmod": torch.fmod,
}

_WHOLE: dict[str, Callable[..., Any]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "linear": functional.linear,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "cdist": torch.cdist,
}


def _elementwise() -> list[Case]:
    cases = []
    for name, run in _ELEMENTWISE.items():
        cases += [
            _two_places(name, run, GPU0, GPU1, REFUSED),
            _two_places(name, run, GPU0, HOST, REFUSED),
            Case(f"{name}: GPU and a CPU scalar", run, (floats(GPU0, 2, 2), floats(HOST)), GPU0),
            Case(f"{name}: a CPU scalar and GPU", run, (floats(HOST), floats(GPU0, 2, 2)), GPU0),
            Case(f"{name}: scalars of two GPUs", run, (floats(GPU0, 2, 2), floats(GPU1)), REFUSED),
        ]
    return cases


def _whole() -> list[Case]:
    cases = []
    for name, run in _WHOLE.items():
        cases += [
            _two_places(name, run, GPU1, GPU1, GPU1),
            _two_places(name, run, GPU0, GPU1, REFUSED),
            _two_places(name, run, GPU0, HOST, REFUSED),
            _two_places(name, run, HOST, GPU0, REFUSED),
        ]
    return cases


def _set(tensor: Tensor, where: Any, value: Any) -> Tensor:
    tensor[where] = value
    return tensor


_MIXED = [
    Case("add_: a CPU scalar in place", lambda a, b: a.add_(b), (floats(HOST), floats(GPU0)), REFUSED),
    Case("add_: GPU in place, CPU scalar", lambda a, b: a.add_(b), (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("add: out on another GPU", lambda a, o: torch.add(a, a, out=o), (floats(GPU0, 2), floats(GPU1, 2)), REFUSED),
    Case("add: out on the CPU", lambda a, o: torch.add(a, a, out=o), (floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("cat: an empty CPU tensor", lambda a, b: torch.cat([a, b]), (floats(GPU0, 2), floats(HOST, 0)), REFUSED),
    Case("dot: a CPU vector", torch.dot, (floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("bmm: two GPUs", torch.bmm, (floats(GPU0, 1, 2, 2), floats(GPU1, 1, 2, 2)), REFUSED),
    Case("addmm: bias on the CPU", torch.addmm, (floats(HOST, 2), floats(GPU0, 2, 2), floats(GPU0, 2, 2)), REFUSED),
    Case(
        "linear: bias on another GPU",
        functional.linear,
        (floats(GPU0, 2, 2), floats(GPU0, 2, 2), floats(GPU1, 2)),
        REFUSED,
    ),
    Case("clamp: a CPU scalar", torch.clamp, (floats(GPU0, 2), floats(HOST)), REFUSED),
    Case("embedding: ids on the CPU", functional.embedding, (index(HOST, 3), floats(GPU0, 2, 2)), REFUSED),
    Case("embedding: ids on another GPU", functional.embedding, (index(GPU1, 3), floats(GPU0, 2, 2)), REFUSED),
    Case("embedding: all on GPU 1", functional.embedding, (index(GPU1, 3), floats(GPU1, 2, 2)), GPU1),
    Case(
        "attention: mask on the CPU",
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (floats(GPU0, 1, 1, 2, 4), mask(HOST, 2, 2)),
        REFUSED,
    ),
    Case(
        "attention: mask on its GPU",
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (floats(GPU1, 1, 1, 2, 4), mask(GPU1, 2, 2)),
        GPU1,
    ),
    Case("cross entropy: targets on the CPU", functional.cross_entropy, (floats(GPU0, 2, 2), index(HOST, 2)), REFUSED),
    Case(
        "layer norm: weight on the CPU",
        lambda a, w: functional.layer_norm(a, (2,), w),
        (floats(GPU0, 2, 2), floats(HOST, 2)),
        REFUSED,
    ),
    Case(
        "index_select: index on the CPU", lambda a, i: a.index_select(0, i), (floats(GPU0, 2), index(HOST, 2)), REFUSED
    ),
    Case(
        "index_select: a scalar index on the CPU",
        lambda a, i: a.index_select(0, i),
        (floats(GPU0, 2), index(HOST)),
        REFUSED,
    ),
    Case("gather: index on the CPU", lambda a, i: a.gather(0, i), (floats(GPU0, 2), index(HOST, 2)), REFUSED),
    Case("gather: index on another GPU", lambda a, i: a.gather(0, i), (floats(GPU0, 2), index(GPU1, 2)), REFUSED),
    Case("gather: all on GPU 1", lambda a, i: a.gather(0, i), (floats(GPU1, 2), index(GPU1, 2)), GPU1),
    Case(
        "scatter: source on the CPU",
        lambda a, i, s: a.scatter(0, i, s),
        (floats(GPU0, 2), index(GPU0, 2), floats(HOST, 2)),
        REFUSED,
    ),
    Case(
        "index_add: source on another GPU",
        lambda a, i, s: a.index_add(0, i, s),
        (floats(GPU0, 2), index(GPU0, 2), floats(GPU1, 2)),
        REFUSED,
    ),
    Case(
        "index_copy: index on the CPU",
        lambda a, i, s: a.index_copy(0, i, s),
        (floats(GPU0, 2), index(HOST, 2), floats(GPU0, 2)),
        REFUSED,
    ),
    Case("index: CPU indices", lambda a, i: a[i], (floats(GPU0, 2), index(HOST, 2)), GPU0, 1),
    Case("index: a CPU mask", lambda a, m: a[m], (floats(GPU0, 2), mask(HOST, 2)), GPU0, 1),
    Case("index: GPU indices", lambda a, i: a[i], (floats(GPU0, 2), index(GPU0, 2)), GPU0),
    Case("index: indices on another GPU", lambda a, i: a[i], (floats(GPU0, 2), index(GPU1, 2)), REFUSED),
    Case("index: a CPU tensor by GPU indices", lambda a, i: a[i], (floats(HOST, 2), index(GPU0, 2)), REFUSED),
    Case("index: a list", lambda a: a[[0, 1]], (floats(GPU0, 2),), GPU0, 1),
    Case("index: a mask", lambda a, m: a[m], (floats(GPU0, 2), mask(GPU0, 2)), GPU0, 1),
    Case("set: a number by a mask", lambda a, m: _set(a, m, 0.0), (floats(GPU0, 2), mask(GPU0, 2)), GPU0),
    Case("set: a CPU scalar by a mask", _set, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST)), GPU0),
    Case("set: a GPU scalar by a mask", _set, (floats(GPU0, 2), mask(GPU0, 2), floats(GPU0)), GPU0, 1),
    Case("set: a number by indices", lambda a, i: _set(a, i, 0.0), (floats(GPU0, 2), index(GPU0, 2)), GPU0, 1),
    Case("set: a number by a slice", lambda a: _set(a, slice(1), 0.0), (floats(GPU0, 2),), GPU0),
    Case(
        "set: a CPU vector by a slice", lambda a, b: _set(a, slice(2), b), (floats(GPU0, 2), floats(HOST, 2)), GPU0, 1
    ),
    Case("set: another GPU's by a slice", lambda a, b: _set(a, slice(2), b), (floats(GPU0, 2), floats(GPU1, 2)), GPU0),
    Case("set: GPU values by GPU indices", _set, (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2)), GPU0),
    Case("set: CPU values by GPU indices", _set, (floats(GPU0, 2), index(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("masked_fill: a number", lambda a, m: a.masked_fill(m, 0.0), (floats(GPU0, 2), mask(GPU0, 2)), GPU0),
    Case("masked_fill: a CPU scalar", torch.masked_fill, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST)), GPU0),
    Case("masked_fill: a GPU scalar", torch.masked_fill, (floats(GPU0, 2), mask(GPU0, 2), floats(GPU0)), GPU0, 1),
    Case("masked_fill: mask on the CPU", lambda a, m: a.masked_fill(m, 0.0), (floats(GPU0, 2), mask(HOST, 2)), REFUSED),
    Case("where: a number", lambda m, a: torch.where(m, 0.0, a), (mask(GPU0, 2), floats(GPU0, 2)), GPU0),
    Case("where: a CPU scalar", torch.where, (mask(GPU0, 2), floats(GPU0, 2), floats(HOST)), GPU0, 1),
    Case("where: a CPU vector", torch.where, (mask(GPU0, 2), floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("where: condition on another GPU", torch.where, (mask(GPU1, 2), floats(GPU0, 2), floats(GPU0, 2)), REFUSED),
    Case("fill_: a CPU scalar", lambda a, b: a.fill_(b), (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("fill_: a GPU scalar", lambda a, b: a.fill_(b), (floats(GPU0, 2), floats(GPU0)), GPU0),
    Case("expand_as: a shape from the CPU", lambda a, b: a.expand_as(b), (floats(GPU0, 2), floats(HOST, 2, 2)), GPU0),
    Case("equal: two GPUs", torch.equal, (floats(GPU0, 2), floats(GPU1, 2)), REFUSED),
    Case("isin: elements on the CPU", torch.isin, (index(GPU0, 2), index(HOST, 2)), REFUSED),
    Case("repeat_interleave: repeats on the CPU", torch.repeat_interleave, (floats(GPU0, 2), counts(HOST, 2)), REFUSED),
]

_TRANSFERS = [
    Case("to: CPU to GPU", lambda a: a.to(GPU0), (floats(HOST, 2),), GPU0, 1),
    Case("to: GPU to CPU", lambda a: a.to("cpu"), (floats(GPU0, 2),), HOST, 1),
    Case("to: GPU to GPU", lambda a: a.to(GPU1), (floats(GPU0, 2),), GPU1),
    Case("to: dtype alone", lambda a: a.to(torch.float64), (floats(GPU1, 2),), GPU1),
    Case("to: like another tensor", lambda a, b: a.to(b), (floats(GPU0, 2), floats(GPU1, 2)), GPU1),
    Case("to: nothing to copy", lambda a: a.to("cpu"), (floats(GPU0, 0),), HOST),
    Case("to: not blocking, into pinned memory", lambda a: a.to("cpu", non_blocking=True), (floats(GPU0, 2),), HOST),
    Case("cuda: the current device", lambda a: a.cuda(), (floats(HOST, 2),), GPU0, 1),
    Case("cpu", lambda a: a.cpu(), (floats(GPU1, 2),), HOST, 1),
    Case("pinned to GPU, not blocking", lambda a: a.pin_memory().to(GPU0, non_blocking=True), (floats(HOST, 2),), GPU0),
    Case("pinned to GPU, blocking", lambda a: a.pin_memory().to(GPU0), (floats(HOST, 2),), GPU0, 1),
    Case("copy_: GPU to GPU", lambda a, b: a.copy_(b), (floats(GPU0, 2), floats(GPU1, 2)), GPU0),
    Case("copy_: GPU to CPU", lambda a, b: a.copy_(b), (floats(HOST, 2), floats(GPU0, 2)), HOST, 1),
    Case("copy_: CPU to GPU", lambda a, b: a.copy_(b), (floats(GPU0, 2), floats(HOST, 2)), GPU0, 1),
    Case("zeros_like", torch.zeros_like, (floats(GPU1, 2),), GPU1),
    Case("new_zeros", lambda a: a.new_zeros(3), (floats(GPU1, 2),), GPU1),
    Case("new_tensor", lambda a: a.new_tensor([1.0]), (floats(GPU1, 2),), GPU1, 1),
    Case("zeros", lambda a: torch.zeros(3, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("arange", lambda a: torch.arange(3, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("full", lambda a: torch.full((3,), 0.5, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("tensor", lambda a: torch.tensor([1, 2], device=a.device), (floats(GPU1, 2),), GPU1, 1),
]

_WAITING = [
    Case("item", lambda a: a.sum().item(), (floats(GPU0, 2),), "host", 1),
    Case("bool", lambda a: bool(a.sum()), (floats(GPU0, 2),), "host", 1),
    Case("int", lambda a: int(a.sum()), (floats(GPU0, 2),), "host", 1),
    Case("tolist", lambda a: a.tolist(), (floats(GPU0, 2),), "host", 1),
    Case("equal", torch.equal, (floats(GPU0, 2), floats(GPU0, 2)), "host", 1),
    Case("allclose", torch.allclose, (floats(GPU0, 2), floats(GPU0, 2)), "host", 1),
    Case("index: a scalar on the GPU", lambda a, i: a[i], (floats(GPU0, 2), index(GPU0)), GPU0, 1),
    Case("nonzero", lambda a: a.nonzero(), (floats(GPU0, 2),), GPU0, 1),
    Case("masked_select", torch.masked_select, (floats(GPU0, 2), mask(GPU0, 2)), GPU0, 1),
    Case("unique", torch.unique, (floats(GPU0, 2),), GPU0, 1),
    Case("bincount", torch.bincount, (index(GPU0, 4),), GPU0, 1),
    Case("repeat_interleave", torch.repeat_interleave, (floats(GPU0, 2), counts(GPU0, 2)), GPU0, 1),
    Case(
        "repeat_interleave: size given",
        lambda a, n: a.repeat_interleave(n, output_size=3),
        (floats(GPU0, 2), counts(GPU0, 2)),
        GPU0,
    ),
    Case("one_hot", functional.one_hot, (index(GPU0, 2),), GPU0, 1),
    Case("one_hot: classes given", lambda i: functional.one_hot(i, 3), (index(GPU0, 2),), GPU0),
    Case("isin: few elements", torch.isin, (index(GPU0, 4), index(GPU0, 2)), GPU0),
    Case("isin: many elements", torch.isin, (index(GPU0, 4), index(GPU0, 64)), GPU0, 1),
    Case("nanmedian", torch.nanmedian, (floats(GPU0, 5),), GPU0),
    Case("nanmedian of a dimension", lambda a: a.nanmedian(0).values, (floats(GPU0, 5),), GPU0),
    Case("quantile", lambda a: torch.quantile(a, 0.5), (floats(GPU0, 5),), GPU0),
    Case("histc of whole numbers", lambda a: torch.histc(a, 4, 0, 3), (counts(GPU0, 4),), GPU0),
    Case("topk", lambda a: a.topk(2).values, (floats(GPU0, 4),), GPU0),
    Case("sort", lambda a: a.sort().values, (floats(GPU0, 4),), GPU0),
    Case("argmax", lambda a: a.argmax(-1), (floats(GPU0, 2, 2),), GPU0),
    Case("cumsum", lambda a: a.cumsum(0), (floats(GPU0, 2),), GPU0),
    Case("softmax", lambda a: a.softmax(-1), (floats(GPU0, 2, 2),), GPU0),
]

CASES = [*_elementwise(), *_whole(), *_MIXED, *_TRANSFERS, *_WAITING]
