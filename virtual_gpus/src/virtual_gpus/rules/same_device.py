"""CUDA's rule: the tensors of one operation are on one device, with a few exceptions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from virtual_gpus import DeviceMismatchError
from virtual_gpus.call_sites import CallSite, assignment, call_site, current_call, describe
from virtual_gpus.machine import BACKENDS, CPU, DEVICES, device_type
from virtual_gpus.plain_tensors import inside, recall, wrapped
from virtual_gpus.rules.op_rule import OpRule
from virtual_gpus.rules.waiting_operators import fills
from virtual_gpus.syncs import report_sync


def place_of(tensor: Tensor) -> int:
    """The index of a tensor's virtual GPU, or CPU for every other tensor."""
    place: int | None = getattr(tensor, "_gpu", None)
    if place is not None:
        return place
    return place_of(inside(tensor)) if wrapped(tensor) and inside(tensor) is not tensor else CPU


def device_of(tensor: Tensor) -> torch.device:
    """The device that a tensor seems to be on."""
    place = place_of(tensor)
    return tensor.device if place == CPU else DEVICES[place]


def check_strangers(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], home: int) -> None:
    """Check the tensors of an operation on GPU `home` that are on no virtual GPU.

    Raises:
        DeviceMismatchError: CUDA would not take one of them.
    """
    scalars = 0
    into_gpu = bool(rule.outputs) and all(  # a scalar must be beside a tensor on a GPU, not only go into one
        place_of(tensor) == CPU for name, _, tensor in rule.tensors(args, kwargs) if name not in rule.outputs
    )
    for name, label, tensor in rule.tensors(args, kwargs):
        if place_of(tensor) != CPU or current_call.owns(tensor, home) or name in rule.host_arguments:
            continue
        if tensor.device.type != "cpu" or name in rule.written:
            raise mismatch(rule, args, kwargs, label)
        if name == rule.cpu_indices:
            if tensor.numel():
                report_sync(f"{rule.name}: copy of a CPU index to {DEVICES[home]}")
        elif tensor.dim() == 0 and name in rule.cpu_scalars and (rule.copied_scalars or not (scalars or into_gpu)):
            scalars += 1  # a TensorIterator takes one; operators that copy scalars take any number
            named = rule.named(args, kwargs)  # x[mask] = number passes the number to the kernel
            if rule.copied_scalars and not ("indices" in named and fills(named)):
                report_sync(f"{rule.name}: copy of a CPU scalar to {DEVICES[home]}")
        else:
            raise mismatch(rule, args, kwargs, label)


def check_other_gpus(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], home: int) -> None:
    """Check the tensors of an operation on GPU `home` that are on other virtual GPUs.

    Raises:
        DeviceMismatchError: one of these tensors is not a value that the host reads.
    """
    for name, label, tensor in rule.tensors(args, kwargs):
        if place_of(tensor) not in (CPU, home) and not (name in rule.read_by_host and tensor.dim() == 0):
            raise mismatch(rule, args, kwargs, label)


def mismatch(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], culprit: str = "") -> DeviceMismatchError:
    """The error for an operation on tensors of different devices: their devices, where they were made, what to do."""
    tensors = [(label, tensor) for _, label, tensor in rule.tensors(args, kwargs)]
    home = device_of(next(tensor for _, tensor in tensors if place_of(tensor) != CPU))
    strangers = [(label, tensor) for label, tensor in tensors if device_of(tensor) != home and tensor.dim()]
    culprits = [(label, tensor) for label, tensor in tensors if label == culprit] or strangers
    culprits = culprits or [(label, tensor) for label, tensor in tensors if device_of(tensor) != home]
    other = device_of(culprits[0][1])
    lines = "\n".join(f"  {describe_tensor(label, tensor)}" for label, tensor in tensors)
    moves = ", ".join(f"`{label}`" for label, tensor in culprits)
    advice = (
        f"Move {moves} with .to('{home}'), or create it there with device=; if {home} is the wrong one, move the rest."
    )
    if other.type == "meta":
        advice = f"{moves} has no values: a hook loads them while the module itself runs, or load it before."
    return DeviceMismatchError(
        f"Expected all tensors to be on the same device, but found at least two devices, {home} and {other}! "
        f"(in aten::{rule.name} at {describe(call_site())})\n{lines}\n{advice}\n"
        f"Newer torch says: ... but got {culprits[0][0]} is on {other}, different from other tensors on {home} "
        f"(when checking argument in method wrapper_{BACKENDS[device_type()]}__{rule.name.split('.')[0]})"
    )


def describe_tensor(label: str, tensor: Tensor) -> str:
    """A line about a tensor: name, shape, dtype, device and where it was made.

    Nothing sees where results on the CPU are computed: for such a tensor, the line names the variable that holds it.
    """
    site: CallSite | None = recall(tensor) if place_of(tensor) == CPU else tensor._made_at  # type: ignore[attr-defined]
    made = f", made at {describe(site)}" if site is not None else ""
    if not made and (assigned := assignment(tensor)):
        made = f", assigned to {assigned}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{label}: {tuple(tensor.shape)} {dtype} on {device_of(tensor)}{made}"
