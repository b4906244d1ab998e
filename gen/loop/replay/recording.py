"""Records a step's torch calls once, and runs them from then on as one flat Python function.

Half the time of a small model's step is spent in modules, keyword arguments and configs, and none of it changes from
step to step. Example: a step that computes `y = x @ w; count.add_(1)` becomes

    def replay(): v0 = matmul(c0, c1); add_(c2, 1); return v0

with the tensors x, w and count as constants: it reads and writes the same memory. So what may be replayed may also be
captured as a CUDA graph, and what may not is refused here, with its reason, on any machine.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}  # tagged for the sake of masks of bool alone
_QUESTIONS = {torch.Size, torch.dtype, torch.device, torch.layout, bool, int, float, str}  # types of their answers
_READING = {"tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__", "__contains__"}


class CannotReplay(Exception):
    """A step that does something else from call to call, or reads on the host: it runs as it is."""


class Call(NamedTuple):
    """A torch call that made or changed a tensor, or looked at one in another way.

    Attributes:
        given, parts: the tensors among its arguments, and among what it gave.
        writes: whether it changes what it is given.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Any
    given: list[Tensor]
    parts: list[Tensor]
    writes: bool


class Replay(Generic[T]):
    """A recorded step; calling it does what the step does to the same tensors.

    Attributes:
        source: the function as Python text.
        calls: how many torch calls it makes.
        nbytes: what it keeps of memory that would be free without it.
    """

    nbytes = 0

    def __init__(self, source: str, constants: Sequence[object], calls: int) -> None:
        self.source, self.constants, self.calls = source, list(constants), calls
        space: dict[str, Any] = {f"c{number}": constant for number, constant in enumerate(constants)}
        exec(source, space)  # our own text, made of names and numbers
        self._function: Callable[[], T] = space["replay"]

    def __call__(self) -> T:
        return self._function()

    def is_like(self, other: "Replay[Any]") -> bool:
        """Whether both make the same calls with the same numbers, on tensors that begin in the same places."""
        pairs = zip(self.constants, other.constants, strict=False)
        return self.source == other.source and all(_begin_alike(*pair) for pair in pairs)


def record(
    step: Callable[[], T], *, again: Callable[[], None] | None = None, known: Replay[Any] | None = None
) -> Replay[T]:
    """Run a step, for real, and return a function that does the same.

    Args:
        step: takes no arguments; all that it reads and writes are tensors that stay where they are.
        again: brings those tensors back to what they were. Then the step runs a second time, and is refused unless it
            makes the same calls on the same tensors and numbers.
        known: what such a step of another shape was recorded as, which has run twice. The second run is left out where
            the first one was like it: a number that the host counts, or a tensor that it replaces, would have differed
            there too, unless the shape decides whether it does so, and then the calls, the numbers or the places do.
    Raises:
        CannotReplay: it reads on the host, copies between devices, draws random numbers of torch's (which recording
            would use up), has a shape that depends on data, calls an operation that torch functions do not show, or
            does something else at its second run. It may have run in part.
    """
    result, calls = observe(step)
    calls = _lasting(calls)
    replay = _compile(result, calls)
    if again is not None and (known is None or not replay.is_like(known)):
        again()
        other, others = observe(step)
        if not _same_calls((result, calls), (other, _lasting(others))):
            raise CannotReplay(
                "it does something else at its next call: a number on the host changes, or a tensor is replaced "
                "instead of written to"
            )
    return replay


def observe(step: Callable[[], T]) -> tuple[T, list[Call]]:
    """Run a step, for real; what it returns and its torch calls.

    Raises:
        CannotReplay: as of `record`.
    """
    dispatched = _Dispatched()
    functions = _Functions(dispatched)
    with dispatched, functions:
        result = step()
    return result, functions.calls


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that read, and those that no torch function has called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inside = 0  # how many torch functions are under way

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op._schema.name
        if name in _INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                raise CannotReplay("it selects by a mask of bool: a shape that depends on data")
        elif torch.Tag.nondeterministic_seeded in op.tags and _draws(name, args, kwargs or {}):
            raise CannotReplay(f"it draws random numbers of torch's: {name}")
        elif name in ("aten::copy_", "aten::_to_copy") and _crosses(name, args, kwargs or {}):
            raise CannotReplay(f"it copies between devices: {name}")
        elif _DEPENDS_ON_DATA & set(op.tags) or name in ("aten::equal", "aten::is_nonzero"):
            raise CannotReplay(f"it reads on the host what it has computed: {name}")
        if not self.inside:
            raise CannotReplay(f"{name} is called where torch functions do not show it")
        return op(*args, **(kwargs or {}))


def _draws(name: str, args: Any, kwargs: Any) -> bool:
    """Whether an operator that may draw random numbers does; attention and dropout do in training alone."""
    return "attention" not in name and not ("dropout" in name and (*args, *kwargs.values())[2:3] == (False,))


def _crosses(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a copy goes to another device."""
    here = args[0].device
    there = args[1].device if name == "aten::copy_" else kwargs.get("device")
    return there is not None and (there.type != here.type or there.index not in (None, here.index))


class _Functions(TorchFunctionMode):
    """Keeps every call of a torch function, in order."""

    def __init__(self, dispatched: _Dispatched) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._dispatched = dispatched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READING:
            raise CannotReplay(f"it reads on the host: {name}")
        self._dispatched.inside += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self._dispatched.inside -= 1
        if name == "to" and result.device != args[0].device:
            raise CannotReplay("it copies between devices: to")
        if type(result) not in _QUESTIONS:
            given, writes = _tensors((args, kwargs)), _writes(name, kwargs)
            parts = _tensors(result)
            if writes or (parts and not (len(parts) == 1 and any(parts[0] is one for one in given))):
                self.calls.append(Call(func, args, kwargs, result, given, parts, writes))
        return result


class _Writer:
    """Writes values as Python text, with names for what is no literal."""

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
        if isinstance(value, slice):
            return f"slice({self.write(value.start)}, {self.write(value.stop)}, {self.write(value.step)})"
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        return self.constant(value)

    def constant(self, value: object) -> str:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.constants)
            self.constants.append(value)  # which keeps its identity from being used again
        return f"c{number}"


def _lasting(calls: Sequence[Call]) -> list[Call]:
    """The calls without views of what is always there, which are always there themselves."""
    made_here: set[int] = set()  # tensors that a call makes anew
    kept = []
    for call in calls:
        if not _views_constants(call, made_here):
            kept.append(call)
            made_here.update(map(id, call.parts))
    return kept


def _compile(result: T, kept: Sequence[Call]) -> Replay[T]:
    """The calls as a function."""
    last_use = {id(tensor): number for number, call in enumerate(kept) for tensor in call.given}
    returned = set(map(id, _tensors(result)))
    writer, lines = _Writer(), []
    for number, call in enumerate(kept):
        arguments = [
            *map(writer.write, call.args),
            *(f"{key}={writer.write(value)}" for key, value in call.kwargs.items()),
        ]
        call_text = f"{writer.constant(call.func)}({', '.join(arguments)})"
        if call.made is None or any(call.made is tensor for tensor in call.given):
            lines.append(call_text)
        else:
            lines.append(f"v{number} = {call_text}")
            if isinstance(call.made, Tensor):
                writer.name(call.made, f"v{number}")
            else:
                for place, part in enumerate(call.made):
                    if isinstance(part, Tensor):
                        writer.name(part, f"v{number}[{place}]")
        dead = {writer.write(t) for t in call.given if last_use[id(t)] == number and id(t) not in returned}
        if names := sorted(name for name in dead if name.startswith("v") and "[" not in name):
            lines.append(f"del {', '.join(names)}")
    lines.append(f"return {writer.write(result)}")
    header = ", ".join(f"c{number}=c{number}" for number in range(len(writer.constants)))
    return Replay(f"def replay({header}):\n    " + "\n    ".join(lines), writer.constants, len(kept))


def _views_constants(call: Call, made_here: set[int]) -> bool:
    """Whether a call only looks at another way at memory that stays where it is: then so does what it gave."""
    if call.writes or not call.given or any(id(tensor) in made_here for tensor in call.given):
        return False
    if not all(map(_plain, call.given)) or not all(map(_plain, call.parts)):
        return False
    memory = {_storage(tensor) for tensor in call.given}
    return all(_storage(part) in memory for part in call.parts)


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__")
    return in_place or augmented or name == "__setitem__" or kwargs.get("out") is not None


def _tensors(value: object) -> list[Tensor]:
    """All tensors in a value."""
    found: list[Tensor] = []
    left = [value]
    for one in left:  # which grows
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, slice):
            left += (one.start, one.stop, one.step)
    return found


def _same_calls(first: tuple[object, Sequence[Call]], second: tuple[object, Sequence[Call]]) -> bool:
    """Whether two runs make the same calls on the same tensors and numbers, and give the same."""
    twins: dict[int, Tensor] = {}  # of what the first run has made, by identity: what the second has
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
        return twins[id(one)] is two if id(one) in twins else _plain(one) and _where(one) == _where(two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(_same(a, b, twins) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(value, two[key], twins) for key, value in one.items())
    if isinstance(one, slice):
        return _same((one.start, one.stop, one.step), (two.start, two.stop, two.step), twins)
    return bool(one == two)


def _begin_alike(one: object, two: object) -> bool:
    """Whether two values are the same, or tensors that are laid out alike from the same place on."""
    if isinstance(one, Tensor) and isinstance(two, Tensor) and _plain(one) and _plain(two):
        return (one.data_ptr(), one.stride(), one.dtype) == (two.data_ptr(), two.stride(), two.dtype)
    return one is two or (type(one) is type(two) and not isinstance(one, Tensor) and bool(one == two))


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory and nothing else: not one of a class with a mind of its own."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _where(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
