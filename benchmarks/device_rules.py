"""Do virtual GPUs refuse the mixes that torch's own model of CUDA refuses? Every operator, against FakeTensorMode.

    python -m benchmarks.device_rules [--only linalg] [--samples 3] [--json FILE]

Takes the sample inputs of torch's own tests (`op_db` of torch's wheels, which needs expecttest) and calls each operator
with all its tensors on cuda:0; with each tensor in turn on cuda:1, on the CPU, and as a number (0-dim) on the CPU; with
`out=` on cuda:0, cuda:1 and the CPU, also where all else is numbers on the CPU; and under autocast. The verdict is the
devices and dtypes of the results, or that the call is refused. Calls that the plain CPU refuses are left out. Where
values decide what fake tensors cannot know, the host must wait, and the verdict is that it does.

A difference is sorted. "generated check": virtual GPUs alone refuse, and native_functions.yaml has no `device_check:
NoCheck` for the operator, so that its wrapper for CUDA refuses it, too. "numbers into a GPU": there is nothing but
numbers on the CPU and `out=` on a GPU, and a TensorIterator takes at most one of them, where its kernel allows it. All
others are listed, to be looked at.
"""

import logging
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from benchmarks.measuring import publish, read_arguments
from virtual_gpus import no_host_sync, virtual_gpus
from virtual_gpus.rules.op_rule import without_device_check

DTYPES = torch.float32, torch.int64, torch.bool, torch.complex64
NUMBER = "a CPU number"
CRASHES = {"_chunk_cat"}  # ends the process on fake tensors
SORTED = {"agree", "agree that the host waits", "fake tensors cannot say", "generated check", "numbers into a GPU"}
REFUSED, WAITS, UNKNOWN = "refused", "waits", "unknown"
Place = Callable[[Tensor, str], Tensor]


@dataclass(frozen=True)
class Sample:
    """One call of an operator: its flattened arguments, and which of them are tensors."""

    name: str
    op: Callable[..., Any]
    leaves: list[Any]
    tensors: list[int]
    shape: Any
    result: Any  # what the plain CPU makes of it

    def call(self, places: tuple[str, ...], out: str, place: Place) -> Any:
        """Call the operator with its tensors where `places` says, and with `out=` if that names a device."""
        leaves = list(self.leaves)
        for position, where in zip(self.tensors, places, strict=True):
            leaves[position] = place(leaves[position], where)
        first, args, kwargs = tree_unflatten(leaves, self.shape)
        if out:
            kwargs["out"] = place(self.result, out)
        return self.op(first, *args, **kwargs)


@dataclass(frozen=True)
class Case:
    sample: Sample
    places: tuple[str, ...]
    out: str = ""
    autocast: bool = False

    def __str__(self) -> str:
        told = [*self.places, *([f"out {self.out}"] if self.out else []), *(["autocast"] if self.autocast else [])]
        return f"{self.sample.name}({', '.join(told)})"

    def verdict(self, place: Place, autocast: Callable[[], AbstractContextManager[Any]]) -> str:
        try:
            with autocast() if self.autocast else nullcontext():
                results = tree_leaves(self.sample.call(self.places, self.out, place))
        except (DataDependentOutputException, DynamicOutputShapeException):
            return WAITS
        except Exception as error:
            said = " ".join(str(error).split())
            if "is on the CPU only" in said or "not linked with support" in said or "not available" in said:
                return UNKNOWN
            return (
                f"{REFUSED} {_refusing(said)}"
                if "device" in said
                else f"{UNKNOWN} {type(error).__name__}: {said[:150]}"
            )
        dtype = f" {[str(result.dtype).removeprefix('torch.') for result in results if isinstance(result, Tensor)]}"
        on = sorted({str(result.device) for result in results if isinstance(result, Tensor)})
        return f"{' and '.join(on)}{dtype if self.autocast else ''}"


def _refusing(said: str) -> str:
    found = re.search(r"in aten::([\w.]+) at", said)
    return found[1] if found else ""


def samples(only: str, most: int) -> Iterator[Sample]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        dtype = next((dtype for dtype in DTYPES if dtype in op.dtypes), None)
        if dtype is None or name in CRASHES or not re.search(only, name):
            continue
        torch.manual_seed(0)
        for _, given in zip(range(most), op.sample_inputs("cpu", dtype), strict=False):  # type: ignore[no-untyped-call]
            leaves, shape = tree_flatten((given.input, given.args, given.kwargs))
            tensors = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
            if not tensors or not all(type(leaves[position]) is Tensor for position in tensors):
                continue
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            sample = Sample(name, op.op, leaves, tensors, shape, None)
            try:
                result = sample.call(("cpu",) * len(tensors), "", plain)
            except Exception:
                continue
            yield Sample(name, op.op, leaves, tensors, shape, result if op.supports_out else None)


def cases(sample: Sample) -> Iterator[Case]:
    home = ("cuda:0",) * len(sample.tensors)
    yield Case(sample, home)
    yield Case(sample, home, autocast=True)
    for index in range(len(home) if len(home) > 1 else 0):
        for place in ("cuda:1", "cpu", NUMBER):
            yield Case(sample, (*home[:index], place, *home[index + 1 :]))
    if isinstance(sample.result, Tensor):
        for place in ("cuda:0", "cuda:1", "cpu"):
            yield Case(sample, home, place)
        yield Case(sample, (NUMBER,) * len(home), "cuda:0")


def plain(tensor: Tensor, where: str) -> Tensor:
    return tensor.flatten()[0].clone() if where == NUMBER else tensor.clone()


def moved(tensor: Tensor, where: str) -> Tensor:
    return plain(tensor, where) if where in ("cpu", NUMBER) else tensor.to(where)


def fake(tensor: Tensor, where: str) -> Tensor:
    """A tensor without values, within a FakeTensorMode."""
    if where == NUMBER:
        return torch.empty((), dtype=tensor.dtype)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=where)


@contextmanager
def fake_autocast() -> Iterator[None]:
    """torch.autocast("cuda") turns itself off where there is no GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


def judged(only: str, most: int) -> list[tuple[Case, str, str, int]]:
    """Each case with its verdict on fake tensors and on virtual GPUs, and how often the host waits there."""
    with FakeTensorMode() as mode:
        pass
    asked: list[tuple[Case, str]] = []
    for sample in samples(only, most):
        for case in cases(sample):
            if case.autocast or not case.verdict(plain, nullcontext).startswith((REFUSED, UNKNOWN)):
                with mode:
                    asked.append((case, case.verdict(fake, fake_autocast)))
    found = []
    with virtual_gpus(2):
        for case, expected in asked:
            with no_host_sync(count=True) as report:
                verdict = case.verdict(moved, lambda: torch.autocast("cuda"))
            found.append((case, expected, verdict, report.count))
    return found


def sort(case: Case, expected: str, verdict: str, waits: int) -> str:
    """ "agree", or how the two differ."""
    if expected.startswith(UNKNOWN):
        return "fake tensors cannot say"
    if expected == WAITS:
        return "agree that the host waits" if waits or verdict.startswith(REFUSED) else "waits missed"
    if verdict.split(" ")[0] == expected.split(" ")[0] == REFUSED or verdict == expected:
        return "agree"
    if verdict.startswith(REFUSED) and case.out and {*case.places} == {NUMBER}:
        return "numbers into a GPU"
    if verdict.startswith(REFUSED) and (name := verdict.partition(" ")[2]):
        return "generated check" if name not in without_device_check() else "refused alone"
    return "allowed alone" if expected.startswith(REFUSED) else "other results"


def main() -> None:
    given = read_arguments(
        __doc__, only=("", "a pattern in the operators' names"), samples=(2, "sample inputs of each operator")
    )
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # what fake tensors say of calls that they cannot follow
    found = judged(given.only, given.samples)
    listed: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    counts = Counter(sort(*one) for one in found)
    for case, expected, verdict, waits in found:
        kind = sort(case, expected, verdict, waits)
        if kind not in SORTED:
            listed[kind][case.sample.name].append(f"{case}: fake {expected}; virtual {verdict}")
    print(f"{len({case.sample.name for case, *_ in found})} operators, {len(found)} calls: {dict(counts)}")
    for kind, operators in listed.items():
        for name, calls in operators.items():
            print(f"{kind}: {name}, {len(calls)} calls: {calls[0]}")
    first = {kind: {name: calls[0] for name, calls in of.items()} for kind, of in listed.items()}
    publish(given, calls=counts, **{"first of each operator": first})


if __name__ == "__main__":
    main()
