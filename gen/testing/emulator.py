"""`virtual_gpus`: torch with GPUs that hold real values on the CPU."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.utils._device import _device_constructors

from gen.errors import ArgumentError, DeviceError
from gen.testing import cuda_api, direct_ops, factories, machine, transfers
from gen.testing.cpu_sites import forget
from gen.testing.device_names import Device, index_is_cuda
from gen.testing.device_syncs import sync_test
from gen.testing.generators import VirtualGenerator
from gen.testing.host_syncs import not_reported, report_sync
from gen.testing.native_functions import without_device_check
from gen.testing.virtual_tensor import VirtualTensor


@contextmanager
def virtual_gpus(gpus: int = 2) -> Iterator[None]:
    """In the block, torch has the devices cuda:0 to cuda:gpus-1, on a machine with or without real ones.

    Tensors on them hold real values and compute what the CPU computes. An operation that mixes devices as CUDA would
    not raises a DeviceMismatchError, which says what was where and where it was made. The block holds for all threads,
    each of which has its own current device; it does not nest. Afterwards torch is as before; tensors that are left
    over can still be computed with and copied to the CPU. See docs/virtual_gpus.md for what is not emulated.

    Args:
        gpus: how many devices, 1 to 64.
    Raises:
        ArgumentError: `gpus` is no such number.
        DeviceError: a block is open already, here or in another thread.
    """
    if not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= machine.MAX_GPUS:
        raise ArgumentError(f"virtual_gpus takes 1 to {machine.MAX_GPUS} devices, got {gpus!r}")
    without_device_check()  # fails here rather than in the first operation
    _device_constructors()  # remembers torch's own functions, as long as they are in their places
    active = machine.Machine(gpus=gpus)
    machine.start(active)
    with ExitStack() as undo:
        undo.callback(machine.stop)
        undo.callback(forget)
        active.generators = tuple(VirtualGenerator(device) for device in machine.DEVICES[:gpus])
        for generator in active.generators:
            generator.set_state(torch.default_generator.get_state())
        undo.callback(_forget_answers)
        for owner, name, value in _substitutes():
            undo.callback(_put(owner, name, value))
        _forget_answers()
        default = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
        undo.callback(_restore_default_device, default)
        yield


def _substitutes() -> list[tuple[object, str, object]]:
    """What to put in the place of what: (module or class, name, value)."""
    wraps: list[tuple[object, tuple[str, ...], Callable[[Any], Any]]] = [
        (torch, factories.FILLED, factories.filled),
        (torch, factories.DRAWN, factories.drawn),
        (torch, factories.LIKE, factories.like),
        (torch, factories.COPIED, factories.copied),
        (Tensor, factories.NEW, factories.like),
        (torch, ("bernoulli", "multinomial", "poisson"), factories.with_generator_check),
        (Tensor, _DRAWING_METHODS, factories.with_generator_check),
        (functional, ("one_hot",), _known_to_wait_otherwise),
        (torch, ("quantile", "nanquantile"), _known_to_wait_otherwise),
        (Tensor, ("quantile", "nanquantile"), _known_to_wait_otherwise),
    ]
    wrapped = [
        (owner, name, wrap(getattr(owner, name)))
        for owner, names, wrap in wraps
        for name in names
        if hasattr(owner, name)
    ]
    methods: list[tuple[object, str, object]] = [
        *((Tensor, name, method) for name, method in transfers.METHODS.items()),
        (Tensor, "new_tensor", factories.new_tensor),
        (Tensor, "data", property(Tensor.data.__get__, transfers.set_data)),  # type: ignore[attr-defined]
        (torch, "Generator", VirtualGenerator),
        (torch, "compile", _not_compiled),
        (torch.export, "export", _no_export),
        (torch, "load", transfers.load(torch.load)),
        (OpOverload, "__call__", direct_ops.taking_virtual_devices(OpOverload.__call__)),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
    ]
    if not index_is_cuda():
        methods.append((torch, "device", Device))
    return [*wrapped, *methods, *cuda_api.substitutes()]


_DRAWING_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip


def _known_to_wait_otherwise(original: Callable[..., Any]) -> Callable[..., Any]:
    """A composition that reads values on the CPU only to check them, which it leaves out on CUDA."""
    name = original.__name__
    test = sync_test(name)

    def composition(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(args[0], VirtualTensor):
            return original(*args, **kwargs)
        if test is not None and test(dict(zip(("self", "num_classes"), args, strict=False)) | kwargs):
            report_sync(name)
        with not_reported():
            return original(*args, **kwargs)

    return composition


def _not_compiled(model: Any = None, **options: object) -> Any:
    """torch.compile that leaves everything as it is: what it would generate runs on real devices only."""
    return (lambda function: function) if model is None else model


def _no_export(*args: object, **kwargs: object) -> Any:
    raise DeviceError(
        "torch.export cannot trace virtual GPUs: export on the CPU before the block, and move the program."
    )


def _put(owner: Any, name: str, value: object) -> Callable[[], None]:
    """Set an attribute; return what sets it back, or takes it away if it was inherited."""
    own = vars(owner)
    if name in own:
        before = own[name]
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)
    setattr(owner, name, value)
    return lambda: delattr(owner, name)


def _restore_default_device(before: Any) -> None:
    """Undo a torch.set_default_device of the block, which would name a device that no longer exists."""
    after = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
    if after is not before:
        torch.set_default_device(None if before is None else before.device)


def _forget_answers() -> None:
    """Clear what transformers and accelerate remember of the devices that there are."""
    for library in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        module = sys.modules.get(library)
        for name, function in list(vars(module).items()) if module else ():
            if name.startswith("is_") and hasattr(function, "cache_clear"):
                function.cache_clear()
