"""Records a step's torch calls once, and runs them from then on as one flat Python function.

Half the time of a small model's step is spent in modules, keyword arguments and configs, and none of it changes from
step to step. Example: a step that computes `y = x @ w; count.add_(1)` becomes

    def replay(): v0 = matmul(c0, c1); add_(c2, 1); return v0

with the tensors x, w and count as constants: it reads and writes the same memory. So what may be replayed may also be
captured as a CUDA graph, and what may not is refused here, with its reason, on any machine.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}  # tagged for the sake of masks of bool alone
_READING = {"tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__", "__contains__"}


class CannotReplay(Exception):
    """A step that does something else from call to call, or reads on the host: it runs as it is."""


class Replay(Generic[T]):
    """A recorded step; calling it does what the step does to the same tensors.

    Attributes:
        source: the function as Python text.
        calls: how many torch calls it makes.
    """

    def __init__(self, source: str, constants: Sequence[object], calls: int) -> None:
        self.source, self.constants, self.calls = source, list(constants), calls
        space: dict[str, Any] = {f"c{number}": constant for number, constant in enumerate(constants)}
        exec(source, space)  # our own text, made of names and numbers
        self._function: Callable[[], T] = space["replay"]

    def __call__(self) -> T:
        return self._function()

    def same_as(self, other: "Replay[T]") -> bool:
        """Whether both make the same calls on the same tensors and numbers."""
        pairs = zip(self.constants, other.constants, strict=False)
        return self.source == other.source and all(one is two or _equal(one, two) for one, two in pairs)


def record(step: Callable[[], T], *, again: Callable[[], None] | None = None) -> Replay[T]:
    """Run a step, for real, and return a function that does the same.

    Args:
        step: takes no arguments; all that it reads and writes are tensors that stay where they are.
        again: brings those tensors back to what they were. Then the step runs a second time, and is refused unless it
            makes the same calls on the same tensors and numbers.
    Raises:
        CannotReplay: it reads on the host, copies between devices, draws random numbers of torch's (which recording
            would use up), has a shape that depends on data, calls an operation that torch functions do not show, or
            does something else at its second run. It may have run in part.
    """
    replay: Replay[T] = _compile(*observe(step))
    if again is not None:
        again()
        second: Replay[T] = _compile(*observe(step))
        if not second.same_as(replay):
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
        if getattr(func, "__name__", "") in _READING:
            raise CannotReplay(f"it reads on the host: {func.__name__}")
        self._dispatched.inside += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self._dispatched.inside -= 1
        if getattr(func, "__name__", "") == "to" and result.device != args[0].device:
            raise CannotReplay("it copies between devices: to")
        self.calls.append((func, args, kwargs, result))
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


def _compile(result: T, calls: Sequence[Call]) -> Replay[T]:
    """The calls as a function; questions of shape, and views of what is always there, are left out."""
    made_here: set[int] = set()  # tensors that a call makes anew
    kept = []
    for call in calls:
        if _does_something(*call) and not _views_constants(*call, made_here):
            kept.append(call)
            made_here |= {id(tensor) for tensor in _tensors(call[3])}
    last_use = {id(tensor): number for number, call in enumerate(kept) for tensor in _tensors(call[1:3])}
    returned = {id(tensor) for tensor in _tensors(result)}
    writer, lines = _Writer(), []
    for number, (func, args, kwargs, made) in enumerate(kept):
        arguments = [*map(writer.write, args), *(f"{key}={writer.write(value)}" for key, value in kwargs.items())]
        call_text = f"{writer.constant(func)}({', '.join(arguments)})"
        given = _tensors((args, kwargs))
        if made is None or any(made is tensor for tensor in given):
            lines.append(call_text)
        else:
            lines.append(f"v{number} = {call_text}")
            if isinstance(made, Tensor):
                writer.name(made, f"v{number}")
            else:
                for place, part in enumerate(made):
                    if isinstance(part, Tensor):
                        writer.name(part, f"v{number}[{place}]")
        dead = {writer.write(t) for t in given if last_use[id(t)] == number and id(t) not in returned}
        if names := sorted(name for name in dead if name.startswith("v") and "[" not in name):
            lines.append(f"del {', '.join(names)}")
    lines.append(f"return {writer.write(result)}")
    header = ", ".join(f"c{number}=c{number}" for number in range(len(writer.constants)))
    return Replay(f"def replay({header}):\n    " + "\n    ".join(lines), writer.constants, len(kept))


def _views_constants(func: Any, args: Any, kwargs: Any, made: Any, made_here: set[int]) -> bool:
    """Whether a call only looks at another way at memory that stays where it is: then so does what it gave."""
    given = _tensors((args, kwargs))
    if _writes(func, kwargs) or any(id(tensor) in made_here for tensor in given):
        return False
    parts = _tensors(made)
    return all(_plain(tensor) for tensor in (*given, *parts)) and all(
        any(_storage(part) == _storage(tensor) for tensor in given) for part in parts
    )


def _does_something(func: Any, args: Any, kwargs: Any, made: Any) -> bool:
    """Whether a call makes or changes a tensor; `.to` of where it is and `.contiguous()` do not."""
    if _writes(func, kwargs):
        return True
    tensors = _tensors(made)
    return bool(tensors) and not (len(tensors) == 1 and any(tensors[0] is given for given in _tensors((args, kwargs))))


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__")
    return in_place or augmented or name == "__setitem__" or kwargs.get("out") is not None


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    if isinstance(value, slice):
        return _tensors((value.start, value.stop, value.step))
    return []


def _equal(one: object, two: object) -> bool:
    """Whether two constants are the same number, or the same view of the same memory."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return _plain(one) and _plain(two) and _where(one) == _where(two)
    return type(one) is type(two) and not isinstance(one, Tensor) and bool(one == two)


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory and nothing else: not one of a class with a mind of its own."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _where(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
