"""Records a step's torch calls once, and runs them from then on as one flat Python function.

A small model's step spends half its time in modules, keyword arguments and configs, which do the same in every step.
Example: a step that computes `y = x @ w; count.add_(1)` becomes

    def replay(): v0 = matmul(c0, c1); add_(c2, 1); return v0

with the tensors x, w and count as constants: it reads and writes the same memory. So a step that may be replayed may
also be captured as a CUDA graph. A step that may not is refused here, with the reason, on any machine.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from gen.loop.replay.observing import Call, CannotReplay, is_plain, lasting, observe, tensors_in


def same_calls(first: tuple[object, Sequence[Call]], second: tuple[object, Sequence[Call]]) -> bool:
    """Whether two runs make the same calls on the same tensors and numbers, and return the same."""
    twins: dict[int, Tensor] = {}  # the second run's tensor for each one that the first has made, by its identity
    if len(first[1]) != len(second[1]):
        return False
    for one, two in zip(first[1], second[1], strict=True):
        same = one.func is two.func or one.func == two.func
        if not (same and _same(one.args, two.args, twins) and _same(one.kwargs, two.kwargs, twins)):
            return False
        if len(one.parts) != len(two.parts):
            return False
        twins.update(zip(map(id, one.parts), two.parts, strict=True))
    return _same(first[0], second[0], twins)


def _same(one: Any, two: Any, twins: dict[int, Tensor]) -> bool:
    """Whether two values are the same number, or the same view of the same memory, or were made by the same call."""
    if one is two:
        return id(one) not in twins or twins[id(one)] is two
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return twins[id(one)] is two if id(one) in twins else is_plain(one) and _where(one) == _where(two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(_same(a, b, twins) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(value, two[key], twins) for key, value in one.items())
    if isinstance(one, slice):
        return _same((one.start, one.stop, one.step), (two.start, two.stop, two.step), twins)
    return _equal(one, two)


def begin_alike(one: object, two: object) -> bool:
    """Whether two values are the same, or tensors that begin at the same place, with equal strides and dtypes."""
    if isinstance(one, Tensor) and isinstance(two, Tensor) and is_plain(one) and is_plain(two):
        return (one.data_ptr(), one.stride(), one.dtype) == (two.data_ptr(), two.stride(), two.dtype)
    return one is two or (type(one) is type(two) and not isinstance(one, Tensor) and _equal(one, two))


def same_values(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have the same numbers, and NaN in the same places. Host sync: one."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(one, two) or bool(((one == two) | ((one != one) & (two != two))).all())


def _equal(one: Any, two: Any) -> bool:
    """Whether two values of one type are equal; False if comparing them does not give a single bool."""
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    found = one == two
    return isinstance(found, bool | np.bool_) and bool(found)


def _where(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


T = TypeVar("T")


class Replay(Generic[T]):
    """A recorded step; calling it does what the step does to the same tensors.

    Attributes:
        source: the function as Python text.
        calls: how many torch calls it makes.
        nbytes: how many bytes of memory it keeps that would be free without it.
    """

    nbytes = 0

    def __init__(self, source: str, constants: Sequence[object], calls: int) -> None:
        self.source, self.constants, self.calls = source, list(constants), calls
        space: dict[str, Any] = {f"c{number}": constant for number, constant in enumerate(constants)}
        exec(_compile(source), space)
        self._function: Callable[[], T] = space.pop("replay")  # popped, so that its globals do not refer to it

    def __call__(self) -> T:
        return self._function()

    def is_like(self, other: "Replay[Any]") -> bool:
        """Whether both make the same calls with the same numbers, on tensors that begin in the same places."""
        pairs = zip(self.constants, other.constants, strict=False)
        return self.source == other.source and all(begin_alike(*pair) for pair in pairs)


def record(step: Callable[[], T]) -> Replay[T]:
    """Run a step, for real, and return a function that does the same. Nothing is checked, see `record_in_steps`.

    Args:
        step: takes no arguments; all that it reads and writes are tensors that stay where they are.
    Raises:
        CannotReplay: the step reads on the host, copies between devices, draws random numbers of torch's (which
            recording would use up), has a shape that depends on data, or calls an operation that torch functions do not
            show. It may have run in part.
    """
    result, seen = observe(step)
    return Replay[T](*_written(result, lasting(seen)))


def record_in_steps(
    step: Callable[[], T], changes: Sequence[Tensor], known: Replay[Any] | None = None
) -> Iterator[Replay[T] | None]:
    """As `record`, in three steps, so that no row waits long: each of them runs the step once, for real.

    The first one writes the recording. The second one shows numbers and tensors that change from call to call: the step
    is refused unless it makes the same calls on the same tensors and numbers. On a CPU the third one runs the recording
    and the step from the same state, and both must give the same values; on other devices it is left out.

    Args:
        changes: tensors whose values are compared on a CPU, beside the step's result. They show effects that calls do
            not show, such as memory that a library fills. Memory that nothing has been written to is NaN in that run.
        known: the recording of such a step of another shape, which was checked in this way. If the first run is like
            it, the checks are left out: a number that the host counts, or a tensor that it replaces, would have shown
            in the other shape too. If the shape decides whether the step does so, its calls, numbers or places differ
            from the known ones.
    Yields:
        None after each step, and the recording after the last one.
    Raises:
        CannotReplay: as `record`, or the step does something else in its second run or in its recording. The step may
            have run, or some of it.
    Host sync: none; on a CPU values are compared.
    """
    result, seen = observe(step)
    calls = lasting(seen)
    replay = Replay[T](*_written(result, calls))
    if known is not None and replay.is_like(known):
        yield replay
        return
    yield None
    other, others = observe(step)
    if not same_calls((result, calls), (other, lasting(others))):
        raise CannotReplay(_CHANGES)
    if all(tensor.device.type == "cpu" for tensor in tensors_in(result, *changes)):
        del result, seen, calls, other, others
        yield None
        _compare(replay, step, changes)
    yield replay


_CHANGES = (
    "it does something else at its next call: a number on the host changes, or a tensor is replaced instead of written "
    "to"
)


def _compare(replay: Replay[Any], step: Callable[[], Any], changes: Sequence[Tensor]) -> None:
    """Run a recording, in which memory that nothing has been written to is NaN, and from the same state the step: both
    must give the same values.
    """
    before = [tensor.clone() for tensor in changes]
    marking = Replay[Any](replay.source, [*map(_marked, replay.constants)], replay.calls)
    made = [tensor.clone() for tensor in tensors_in(marking(), *changes)]
    for tensor, value in zip(changes, before, strict=True):
        tensor.copy_(value)
    if not all(map(same_values, made, tensors_in(step(), *changes))):
        raise CannotReplay("its recording gives other values: something fills tensors where torch does not see it")


def _marked(constant: Any) -> Any:
    """Replace a function that makes unwritten memory by one that fills it with NaN; keep any other constant."""
    if getattr(constant, "__name__", "") not in _UNWRITTEN:
        return constant

    def marked(*args: Any, **kwargs: Any) -> Any:
        made = constant(*args, **kwargs)
        return made.fill_(math.nan if made.is_floating_point() else 85)

    return marked


_UNWRITTEN = {f"{name}{kind}" for name in ("empty", "new_empty") for kind in ("", "_like", "_strided", "_permuted")}


_MOST_CODES = 64


@lru_cache(_MOST_CODES)
def _compile(source: str) -> CodeType:
    """Compile a source, once for all steps that have it: sources have only names and small numbers, so many shapes
    share one.
    """
    return compile(source, "<a recorded step>", "exec")


_SMALL = 10  # numbers from this one on are constants, so that rows of any length have the same source


class _Writer:
    """Writes values as Python text, with names for values that are no literals."""

    def __init__(self) -> None:
        self.constants: list[object] = []
        self._numbers: dict[int, int] = {}  # of constants, by identity
        self._names: dict[int, str] = {}  # of tensors, by identity

    def name(self, tensor: Tensor, name: str) -> None:
        self._names[id(tensor)] = name

    def write(self, value: object) -> str:
        if isinstance(value, Tensor):
            return self._names.get(id(value)) or self.constant(value)
        if type(value) is tuple:
            return "(" + "".join(f"{self.write(part)}, " for part in value) + ")"
        if type(value) is list:
            return "[" + ", ".join(map(self.write, value)) + "]"
        if type(value) is dict:
            return "{" + ", ".join(f"{self.write(key)}: {self.write(part)}" for key, part in value.items()) + "}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self.constant(type(value))}({', '.join(map(self.write, value))})"
        if isinstance(value, slice):
            return f"slice({self.write(value.start)}, {self.write(value.stop)}, {self.write(value.step)})"
        if type(value) is int and value >= _SMALL:
            return self.constant(value)
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if any(id(tensor) in self._names for tensor in tensors_in(value)):
            raise CannotReplay(f"it passes a tensor that it has made within an {type(value).__name__}")
        return self.constant(value)

    def constant(self, value: object) -> str:
        number = self._numbers.get(id(value))
        if number is None or type(value) is int:  # two ints may be one object by chance
            number = self._numbers[id(value)] = len(self.constants)
            self.constants.append(value)  # while it is there, no other value gets its identity
        return f"c{number}"


def _written(result: object, kept: Sequence[Call]) -> tuple[str, list[object], int]:
    """Write the calls as a function; return the arguments of `Replay`. A view that is made again is made once."""
    changed = {id(tensor) for call in kept if call.writes for tensor in call.given}
    writer, lines = _Writer(), list[str]()
    views, last_use = dict[str, str](), dict[str, int]()  # names by call; lines by name
    for number, call in enumerate(kept):
        arguments = [
            *map(writer.write, call.args),
            *(f"{key}={writer.write(value)}" for key, value in call.kwargs.items()),
        ]
        call_text, name = f"{writer.constant(call.func)}({', '.join(arguments)})", f"v{number}"
        if call_text in views:
            writer.name(call.made, views[call_text])
            continue
        last_use |= dict.fromkeys(map(writer.write, call.given), len(lines))
        if call.made is None or any(call.made is tensor for tensor in call.given):
            lines.append(call_text)
            continue
        lines.append(f"{name} = {call_text}")
        if not isinstance(call.made, Tensor):
            for place, part in enumerate(call.made):
                if isinstance(part, Tensor):
                    writer.name(part, f"{name}[{place}]")
            continue
        writer.name(call.made, name)
        if call.views and not any(id(tensor) in changed for tensor in (call.made, *call.given)):
            views[call_text] = name
    for tensor in tensors_in(result):
        last_use.pop(writer.write(tensor), None)
    for name, line in sorted(last_use.items()):
        if name.startswith("v") and "[" not in name:
            lines[line] += f"; del {name}"
    lines.append(f"return {writer.write(result)}")
    header = ", ".join(f"c{number}=c{number}" for number in range(len(writer.constants)))
    return f"def replay({header}):\n    " + "\n    ".join(lines), writer.constants, len(lines) - 1
