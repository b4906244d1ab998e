"""Factories of tensors on virtual GPUs: torch.zeros and the like, `new_*`, `*_like`, and those of sparse tensors.

All end in kernels for the dispatch keys of CUDA: a tensor that torch's C++ code allocates on "cuda:1" is a virtual one.
torch.zeros allocates with `empty`, and fills what it gets.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import DeviceContext

from virtual_gpus.calls.tensor_to import machine_index, to
from virtual_gpus.cuda import memory
from virtual_gpus.cuda.generators import VirtualGenerator, refuse_generator
from virtual_gpus.machine import BACKENDS, CPU, DEVICES, device_type, issued, machine
from virtual_gpus.plain_tensors import as_plain, directly, plain, remember, wrapped
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs import report_sync
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu, pinned

_LARGE = 2**20  # bytes


def _kernel(overload: Any) -> Callable[..., Tensor]:
    """A kernel that makes the tensor on the CPU."""

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        gpu = machine().index(device)
        assert gpu is not None  # the dispatch key says so
        _check_memory(args, kwargs.get("dtype"), gpu)
        with as_plain():
            made = overload(*args, device="cpu", **kwargs)
        if "empty" not in overload.name():
            issued[gpu] += 1
        return on_gpu(made, gpu)

    return make


def _check_memory(sizes: Sequence[Any], dtype: torch.dtype | None, gpu: int) -> None:
    """Raise OutOfMemoryError before the host takes the memory of a large tensor."""
    if not sizes or not isinstance(sizes[0], list | tuple):
        return
    elements = prod(sizes[0])
    if len(sizes) > 1 and elements:  # strides, too
        elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes[0], sizes[1], strict=True))
    size = elements * (dtype or torch.get_default_dtype()).itemsize
    if size > _LARGE:
        memory.check(size, gpu)


def register_kernels() -> Callable[[], None]:
    """Register the kernels; returns a function that removes them."""
    torch._C._ensureCUDADeviceGuardSet()
    kernels = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    aten = torch.ops.aten
    for overload, *keys in (
        (aten.empty.memory_format, "CUDA", "SparseCUDA", "SparseCsrCUDA"),
        (aten.empty_strided.default, "CUDA"),
        (aten._efficientzerotensor.default, "CUDA"),
        (aten._empty_affine_quantized.default, "CUDA", "QuantizedCUDA"),
        (aten._empty_per_channel_affine_quantized.default, "CUDA", "QuantizedCUDA"),
        (aten.tril_indices.default, "CUDA"),
        (aten.triu_indices.default, "CUDA"),
    ):
        for key in keys:
            own = key.replace("CUDA", BACKENDS[device_type()])
            if torch._C._parse_dispatch_key(own) is not None:
                with warnings.catch_warnings(action="ignore"):  # torch before 2.12 warns of kernels in others' places
                    kernels.impl(overload, _kernel(overload), own)  # type: ignore[no-untyped-call]
    return kernels._destroy


PLAIN = (
    "_efficientzerotensor", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "arange",
    "bartlett_window", "blackman_window", "empty", "empty_permuted", "empty_strided", "eye", "full", "hamming_window",
    "hann_window", "kaiser_window", "linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm",
    "range", "scalar_tensor", "tril_indices", "triu_indices", "zeros",
)  # fmt: skip
LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
COPIED = ("as_tensor", "asarray", "tensor")
SHARED = ("from_numpy", "frombuffer")

Factory = Callable[..., Any]


def factory(original: Factory) -> Factory:
    """A function like torch.zeros, torch.rand, torch.zeros_like or Tensor.new_zeros."""
    with_model = original.__name__ in (*LIKE, *NEW)

    @wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        return make(original, args, kwargs, with_model=with_model)

    return made


def make(original: Factory, args: Sequence[Any], kwargs: Mapping[str, Any], *, with_model: bool) -> Any:
    """Call a factory. Its tensor is on the device that is named; or else on that of its model; or on that of the
    context, or the CPU.

    torch's own code makes tensors on GPUs, by the kernels above. A model on a GPU is given to it as the
    CPU tensor that it is underneath, if another device is named.

    Args:
        with_model: whether the first argument is a tensor whose properties count.
    """
    named = dict(kwargs)
    pin = bool(named.pop("pin_memory", False))
    model = (args[0] if args else named.get("input", named.get("self"))) if with_model else None
    place = CPU if model is None else place_of(model)
    device = named.pop("device", None)
    if device is None and model is None:
        device = ambient_device()
    target = place if device is None else machine_index(device)
    check_generator(named.get("generator"), target)
    if "out" in named or (target == place != CPU) or _is_operator(original, args, kwargs):
        return original(*args, **named)
    if original is _range and target not in (None, CPU):  # its binding asks for a CUDA runtime
        issued[target] += 1
        return on_gpu(original(*args, **named, device="cpu"), target)
    if device is not None:
        named["device"] = device if target is None else DEVICES[target]
    if model is None or place == CPU:
        with directly():  # a size or value on a GPU is read
            return _finish_on_cpu(original(*args, **named), pin)
    if wrapped(model):
        with as_plain():
            return original(*args, **named)
    below = plain(model)
    named = {name: below if value is model else value for name, value in named.items()}
    return _finish_on_cpu(original(*((below, *args[1:]) if args else ()), **named), pin)


def _is_operator(original: Factory, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is torch.normal with tensors, which makes nothing of a named size."""
    return original is _normal and any(type(value) is VirtualTensor for value in (*args, *kwargs.values()))


def copied(original: Factory) -> Factory:
    """A factory that copies its data, like torch.tensor. Host sync: copies of numbers to a GPU block."""

    @wraps(original)
    def factory(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, Tensor) and original is not _tensor:  # as_tensor and asarray copy only if they must
            device = kwargs.pop("device", None)
            device = ambient_device() if device is None else device
            target = None if device is None else machine().index(device)
            if target is None and place_of(data) == CPU:
                return original(data, *args, **kwargs, **({} if device is None else {"device": device}))
            return to(data, device=device, dtype=kwargs.get("dtype"), copy=bool(kwargs.get("copy", False)))
        source = place_of(data) if isinstance(data, Tensor) else CPU
        if isinstance(data, Tensor) and kwargs.get("device") is None:
            return original(data, *args, **kwargs)
        report_reads(data)
        target, pin = _take_place(kwargs)
        if target is None:
            if source != CPU:
                data = to(data, "cpu")
            return _finish_on_cpu(original(data, *args, **kwargs), pin)
        if source != CPU:
            made = to(data.detach(), DEVICES[target], kwargs.get("dtype"), copy=True)
            return made.requires_grad_(kwargs.get("requires_grad", False))
        made = original(data, *args, **kwargs, device="cpu")
        issued[target] += 1
        if made.numel():
            report_sync(f"{original.__name__}: copy of numbers from the host to {DEVICES[target]}")
        return on_gpu(made if original is _tensor else made.clone(), target)  # a NumPy array keeps its own memory

    return factory


def report_reads(data: Any) -> None:
    """Report a host sync for each number in nested lists that is a tensor on a GPU: it is read with item()."""
    if isinstance(data, list | tuple):
        for item in data:
            if type(item) is VirtualTensor:
                for _ in range(item.numel()):
                    report_sync("item of a tensor in a list")
            else:
                report_reads(item)


def noted(original: Factory) -> Factory:
    """A function that makes a CPU tensor of other memory; the place of the call is noted."""

    @wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        return _finish_on_cpu(original(*args, **kwargs), False)

    return factory


def new_tensor(tensor: Tensor, data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    """`Tensor.new_tensor`: on the tensor's own device if none is given."""
    dtype = kwargs.pop("dtype", None) or tensor.dtype
    made: Tensor = torch.tensor(data, dtype=dtype, device=tensor.device if device is None else device, **kwargs)
    return made


def check_generator(generator: torch.Generator | None, target: int | None) -> None:
    """Raise as torch does if a generator is of another kind than the device that draws.

    Args:
        target: a GPU, or None for the CPU.
    """
    if generator is None:
        return
    expected = "cpu" if target is None or target == CPU else device_type()
    found = generator.device.type if isinstance(generator, VirtualGenerator) else "cpu"
    if found != expected:
        refuse_generator(expected, found)


def with_generator_check(original: Factory) -> Factory:
    """An operator that takes a generator; on CPU tensors it refuses a GPU's generator."""

    @wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is not None and not any(type(value) is VirtualTensor for value in args):
            check_generator(kwargs["generator"], None)
        return original(*args, **kwargs)

    return draw


_tensor = torch.tensor
_normal = torch.normal
_range = torch.range


def _take_place(kwargs: dict[str, Any]) -> tuple[int | None, bool]:
    """Read the device from a factory's arguments, and remove it if it is a virtual GPU. Memory is pinned afterwards."""
    device = kwargs.get("device")
    pin = bool(kwargs.pop("pin_memory", False))
    if device is None:
        device = ambient_device()
        if device is None:
            return None, pin
    target = machine().index(device)
    if target is not None:
        kwargs.pop("device", None)
    return target, pin


def ambient_device() -> torch.device | None:
    """The device of the innermost `with torch.device(...)`, or of torch.set_default_device."""
    for depth in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(depth)
        if isinstance(mode, DeviceContext):
            device: torch.device = mode.device
            return device
    return None


def _finish_on_cpu(made: Tensor, pin: bool) -> Tensor:
    """Note where a CPU tensor was made, for errors about it; pin it if that was asked for."""
    if pin and made.device.type == "cpu":
        return pinned(made)
    if type(made) is Tensor and made.device.type == "cpu":
        remember(made)
    return made


COMPRESSED = tuple(f"sparse_{kind}_tensor" for kind in ("compressed", "csr", "csc", "bsr", "bsc"))


def of_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    """A factory of sparse tensors: it moves indices and values to the device, and makes the tensor there.

    Host sync: copies of numbers and of CPU tensors to a GPU block; without a size, the host reads indices.
    """
    count = 3 if original.__name__ in COMPRESSED else 2

    @wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        device = ambient_device() if device is None else device
        target = None if device is None else machine_index(device)
        parts = [*args[:count], *(value for name, value in kwargs.items() if _is_part(name))]
        if target is None and not any(type(part) is VirtualTensor for part in parts):
            return original(*args, **kwargs)
        kwargs.pop("device", None)
        if len(parts) < count:  # only a size, and no values
            return on_gpu(original(*args, **kwargs), CPU if target is None else target)
        values = args[count - 1] if len(args) >= count else kwargs["values"]
        home = place_of(values) if isinstance(values, Tensor) else CPU
        place = ("cpu" if home == CPU else DEVICES[home]) if device is None else device
        place = place if target is None else DEVICES[target]

        def moved(part: Any) -> Tensor:
            if isinstance(part, Tensor):
                return part if device is None else to(part, place)
            made: Tensor = torch.tensor(part, device=place, dtype=None if part is values else torch.int64)
            return made

        named = {name: moved(value) for name, value in kwargs.items() if _is_part(name)}
        sized = "size" in kwargs or len(args) > count
        if not sized and target != CPU:
            report_sync(f"{original.__name__}: copy of the largest indices to the host")
        parts = [moved(part) for part in args[:count]]
        with directly():  # torch moves the parts to the device that they have for it
            return original(*parts, *args[count:], **(kwargs | named), device="cpu")

    return factory


def _is_part(name: str) -> bool:
    return name == "values" or name.endswith("indices")


_DRAWING_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value); a torch may lack some of these functions."""
    wraps: list[tuple[object, tuple[str, ...], Callable[[Any], Any]]] = [
        (torch, (*PLAIN, *LIKE), factory),
        (torch, COPIED, copied),
        (torch, SHARED, noted),
        (torch, ("sparse_coo_tensor", *COMPRESSED), of_parts),
        (Tensor, NEW, factory),
        (torch, ("bernoulli", "multinomial", "poisson"), with_generator_check),
        (Tensor, _DRAWING_METHODS, with_generator_check),
    ]
    made = [
        (owner, name, wrap(getattr(owner, name)))
        for owner, names, wrap in wraps
        for name in names
        if hasattr(owner, name)
    ]
    return [*made, (Tensor, "new_tensor", new_tensor)]
