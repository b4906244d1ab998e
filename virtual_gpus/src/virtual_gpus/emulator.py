"""`virtual_gpus`: torch with GPUs that hold real values on the CPU."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from virtual_gpus import ArgumentError, machine
from virtual_gpus.torch_parts import check_torch

if TYPE_CHECKING:
    from virtual_gpus.faults import Fault


@contextmanager
def virtual_gpus(
    gpus: int = 2,
    *,
    device: str = "cuda",
    memory: int | str = "80GiB",
    check_streams: bool = False,
    faults: "Sequence[Fault]" = (),
) -> Iterator[None]:
    """In the block, torch has the devices cuda:0 to cuda:gpus-1, on a machine with or without real ones.

    Tensors on them hold real values and compute what the CPU computes. An operation with a mix of devices that CUDA
    would refuse raises a DeviceMismatchError, which names each tensor, its device and the place where it was made. The
    block holds for all threads, each of which has its own current device; blocks do not nest. Afterwards torch is as
    before; you can still compute with tensors that are left over, and copy them to the CPU. See docs/virtual_gpus.md
    for what is not emulated.

    Args:
        gpus: how many devices, 1 to 64; "mps" has one.
        device: their type: "cuda", "xpu", "mps", "hpu" or "npu". All follow the rules of CUDA.
        memory: how much each of them has: bytes, or a size such as "512MiB" or "80GB". If a GPU needs more, it raises
            torch.OutOfMemoryError as on CUDA. The values are in the host's memory, which must hold all that are in use.
        check_streams: raise a StreamRaceError if work on one stream touches memory that another stream, or the
            host, may still be using, and no event or wait orders the two.
        faults: what goes wrong without an error, see `virtual_gpus.faults`.
    Raises:
        ArgumentError: `gpus` is not a number from 1 to 64, `device` is no type, `memory` is no size, or a fault cannot
            be used.
        DeviceError: a block is open already, here or in another thread; or this torch lacks a private part that
            virtual GPUs need, see `virtual_gpus.torch_parts`.
    """
    if not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= machine.MAX_GPUS:
        raise ArgumentError(f"virtual_gpus takes 1 to {machine.MAX_GPUS} devices, got {gpus!r}")
    if device not in machine.BACKENDS or (device == "mps" and gpus > 1):
        raise ArgumentError(f"device= takes one of {', '.join(machine.BACKENDS)}, of which mps has one; got {device!r}")
    check_torch()  # before the import of modules that need its private parts
    from virtual_gpus import faults as injected
    from virtual_gpus import plain_tensors
    from virtual_gpus.calls import factories, operators
    from virtual_gpus.cuda import memory as usage
    from virtual_gpus.cuda import races
    from virtual_gpus.cuda.generators import VirtualGenerator
    from virtual_gpus.rules import autocast
    from virtual_gpus.rules.op_rule import without_device_check
    from virtual_gpus.substitutes import put, ready, substitutes
    from virtual_gpus.syncs import set_sync_debug_mode

    without_device_check()  # to fail here rather than in the first operation
    _load_formulas()

    active = machine.Machine(gpus=gpus, memory=usage.read_size(memory))
    machine.start(active, device)
    with ExitStack() as undo:
        undo.callback(machine.stop)
        undo.callback(injected.active.clear)
        injected.start(faults, check_streams)
        undo.callback(races.stop)
        races.start(check_streams)
        undo.callback(usage.forget)
        undo.callback(set_sync_debug_mode, 0)
        undo.callback(plain_tensors.sites.clear)
        active.generators = tuple(VirtualGenerator(one) for one in machine.DEVICES[:gpus])
        for generator in active.generators:
            generator.set_state(torch.default_generator.get_state())
        undo.callback(factories.register_kernels())
        undo.callback(operators.support_groups())
        undo.callback(autocast.forget)
        undo.callback(_forget_answers)
        for owner, name, value in substitutes():
            undo.callback(put(owner, name, value))
        for owner, name, value in usage.peers(active.memory):
            undo.callback(put(owner, name, ready(owner, name, value)))
        _forget_answers()
        default = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
        undo.callback(_restore_default_device, default)
        yield


def _load_formulas() -> None:
    """Load the formulas of forward derivatives before the block: torch compiles them from the source of its own
    functions, and their substitutes in the block have none."""
    with warnings.catch_warnings(action="ignore"):  # torch deprecates the compiler that it compiles them with
        from torch._decomp import decompositions_for_jvp  # noqa: F401


def _restore_default_device(before: Any) -> None:
    """Undo a torch.set_default_device of the block, which would name a device that no longer exists."""
    after = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
    if after is not before:
        torch.set_default_device(None if before is None else before.device)


def _forget_answers() -> None:
    """Clear what torch, transformers and accelerate have cached about available devices."""
    getattr(torch.get_device_module, "cache_clear", bool)()
    for library in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        module = sys.modules.get(library)
        for name, function in list(vars(module).items()) if module else ():
            if name.startswith("is_") and hasattr(function, "cache_clear"):
                function.cache_clear()
