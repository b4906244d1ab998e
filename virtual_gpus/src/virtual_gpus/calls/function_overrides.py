"""Functions of torch that need more than a run on the CPU if they are given a virtual tensor."""

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from virtual_gpus import DeviceError, DeviceMismatchError
from virtual_gpus.call_sites import ENGINE, call_site, current_call, describe
from virtual_gpus.calls.dispatch import SPECIAL, Special, call_plainly
from virtual_gpus.calls.factories import LIKE, make
from virtual_gpus.calls.tensor_to import METHODS, read_to, to
from virtual_gpus.machine import CPU
from virtual_gpus.plain_tensors import directly
from virtual_gpus.rules.missing_kernels import half_fft
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.rules.waiting_operators import sync_test
from virtual_gpus.syncs import not_reported, report_sync
from virtual_gpus.virtual_tensor import adopt


def unchecked(name: str) -> Special:
    """A function whose checks would read values on the CPU, and do not on CUDA."""

    def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        waits = sync_test(name)
        if waits is not None and waits({**dict(zip(("self", "num_classes"), args, strict=False)), **kwargs}):
            report_sync(name)
        with not_reported():
            return with_out(func, args, kwargs)

    return call


def copy_(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.copy_` from another device, whose gradient goes back there."""
    target, source, *rest = args
    if _needs_way_back(target, source):
        non_blocking = bool(rest[0] if rest else kwargs.get("non_blocking", False))
        return call_plainly(func, (target, to(source, target.device, non_blocking=non_blocking), *rest), kwargs)
    return call_plainly(func, args, kwargs)


def setitem(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.__setitem__` with a value of another device, whose gradient goes back there; or with a number where an
    index is on another device: torch 2.15 fills by masks and indices, but only those on the target's device."""
    target, index, value = args
    parts = index if isinstance(index, tuple) else (index,)
    if isinstance(value, Number) and any(_lies_elsewhere(part, place_of(target)) for part in parts):
        value = torch.tensor(value, dtype=target.dtype, device="cpu")
    elif _needs_way_back(target, value) and not any(isinstance(part, Tensor | list | bool) for part in parts):
        value = to(value, target.device)
    return call_plainly(func, (target, index, value), kwargs)


def _lies_elsewhere(part: Any, place: int) -> bool:
    """Whether a part of an index is a tensor of another device; here torch makes one of a list on the CPU."""
    if isinstance(part, Tensor):
        return place_of(part) != place
    return place != CPU and (isinstance(part, Sequence) or getattr(part, "ndim", 0) > 0)


def ctc_loss(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`ctc_loss`, which needs its lengths on the host. Host syncs: lengths on a GPU are copied to the host, and
    averaging copies the targets' lengths back. Source: aten/src/ATen/native/LossCTC.cpp.

    Raises:
        DeviceMismatchError: the targets are on another device, and are none that cuDNN takes from the CPU.
    """
    names = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    scores, targets = named["log_probs"], named["targets"]
    for_cudnn = targets.dim() == 1 and targets.dtype == torch.int32 and named.get("blank", 0) == 0
    if place_of(scores) != place_of(targets) and not (for_cudnn and place_of(targets) == CPU):
        raise DeviceMismatchError(
            f"Expected all tensors to be on the same device, but found at least two devices, {scores.device} and "
            f"{targets.device}! (in ctc_loss at {describe(call_site())}) Move `targets` with .to('{scores.device}')."
        )
    for name in ("input_lengths", "target_lengths"):
        if isinstance(named[name], Tensor):
            named[name] = to(named[name], "cpu")
    if named.get("reduction", "mean") in ("mean", 1):
        report_sync("ctc_loss: copy of the target lengths to the device")
    outer = current_call.given
    current_call.given = ENGINE, ()
    try:
        with directly():
            return func(**named)
    finally:
        current_call.given = outer


def pad_packed_sequence(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`_pad_packed_sequence`: batch sizes are on the host, and the padded result is on the sequences' device."""
    padded, lengths = call_plainly(func, args, kwargs)
    place = place_of(args[0])
    return (padded if place == CPU else adopt(padded, place)), lengths


def nested(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`torch.nested.as_nested_tensor` of the strided layout; its gradients would crash the process.

    Raises:
        DeviceError: a tensor requires a gradient.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in args[0]):
        raise DeviceError("virtual GPUs make no nested tensors with gradients: use layout=torch.jagged, or the CPU.")
    return call_plainly(func, args, kwargs)


def fft(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function of torch.fft, which also takes half precision on CUDA."""
    if args and isinstance(args[0], Tensor) and args[0].dtype in (torch.float16, torch.complex32):
        return half_fft(func, args, kwargs)
    return call_plainly(func, args, kwargs)


def meshgrid(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`torch.meshgrid`, of tensors on one device. Source: aten/src/ATen/native/TensorShape.cpp.

    Raises:
        DeviceMismatchError: they are on several devices.
    """
    tensors = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    if len({place_of(tensor) for tensor in tensors}) > 1:
        raise DeviceMismatchError(
            "torch.meshgrid expects all tensors to have the same device, got "
            f"{', '.join(str(tensor.device) for tensor in tensors)} (at {describe(call_site())})"
        )
    return call_plainly(func, args, kwargs)


def tensor_split(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`tensor_split`, for which the host must know the places. Source: aten/src/ATen/native/TensorShape.cpp.

    Raises:
        DeviceMismatchError: the places are on a GPU.
    """
    for places in (*args[1:2], *kwargs.values()):
        if isinstance(places, Tensor) and place_of(places) != CPU:
            raise DeviceMismatchError(
                "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
                f"{places.device} (at {describe(call_site())})"
            )
    return call_plainly(func, args, kwargs)


def cosine_similarity(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`cosine_similarity`, which expands a number from the CPU and then does not take it. Source: Distance.cpp."""
    named = {**dict(zip(("x1", "x2", "dim", "eps"), args, strict=False)), **kwargs}
    named["x1"], named["x2"] = torch.broadcast_tensors(named["x1"], named["x2"])  # type: ignore[no-untyped-call]
    return call_plainly(func, (), named)


def pad_sequence(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`pad_sequence`, which copies the sequences to the device of the first one.
    Source: aten/src/ATen/native/PackedSequence.cpp."""
    named = {**dict(zip(("sequences",), args, strict=False)), **kwargs}
    sequences, rest = named.pop("sequences"), args[1:]
    if len({place_of(sequence) for sequence in sequences}) > 1:
        sequences = [to(sequence, sequences[0].device) for sequence in sequences]
    return call_plainly(func, (sequences, *rest), named)


def with_waiting_backward(name: str) -> Special:
    """A function whose gradient formula looks for zeros on the host; here the wait is reported instead.
    Source: torch/csrc/autograd/FunctionsManual.cpp (prod_backward, cumprod_backward)."""

    def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        made = call_plainly(func, args, kwargs)
        if isinstance(made, Tensor) and made.grad_fn is not None and args[0].dim() and place_of(made) != CPU:
            made.grad_fn.register_prehook(lambda gradients: report_sync(f"the gradient of {name}"))
        return made

    return call


def with_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A composition, most of them of torch.linalg, whose `out` must be on the device of its first tensor. Source:
    checkSameDevice in aten/src/ATen/native/LinearAlgebraUtils.h, and checks in Linear.cpp, Sorting.cpp, UnaryOps.cpp.

    Raises:
        DeviceMismatchError: `out` is on another device.
    """
    out = kwargs.get("out")
    given = next((tensor for tensor in args if isinstance(tensor, Tensor)), None)
    for one in out if isinstance(out, tuple) else (out,):
        if isinstance(one, Tensor) and given is not None and place_of(one) != place_of(given):
            raise DeviceMismatchError(
                f"{func.__name__.replace('linalg_', 'linalg.')}: Expected result and input tensors to be on the same "
                f"device, but got result on {one.device} and input on {given.device} (at {describe(call_site())})"
            )
    return call_plainly(func, args, kwargs)


def like(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A factory that takes a tensor's properties, and maybe another device; torch may name it by its substitute."""
    original = getattr(func, "__wrapped__", func)
    return make(lambda *args, **kwargs: call_plainly(original, args, kwargs), args, kwargs, with_model=True)


def between(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """linspace or logspace with bounds on a GPU, whose result need not be there."""
    return call_plainly(func, args, kwargs) if "out" in kwargs else make(func, args, kwargs, with_model=False)


def moving(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A method of `tensor_to.METHODS`, which torch names by its substitute even if it is from before the block."""
    if func.__name__ == "to" and read_to(tuple(args[1:]), dict(kwargs)).device is None:
        return call_plainly(func.__wrapped__, args, kwargs)
    return METHODS[func.__name__](*args, **kwargs)


_Builtin = type(torch.linalg.norm)


def _needs_way_back(target: Any, source: Any) -> bool:
    return (
        isinstance(target, Tensor)
        and isinstance(source, Tensor)
        and source.requires_grad
        and torch.is_grad_enabled()
        and place_of(target) != place_of(source)
    )


SPECIAL.update(
    {
        functional.one_hot: unchecked("one_hot"),
        **dict.fromkeys((torch.quantile, Tensor.quantile), unchecked("quantile")),
        **dict.fromkeys((torch.nanquantile, Tensor.nanquantile), unchecked("nanquantile")),
        **dict.fromkeys((functional.ctc_loss, torch.ctc_loss), ctc_loss),
        torch._nested_tensor_from_tensor_list: nested,
        torch._VF._pad_packed_sequence: pad_packed_sequence,
        **dict.fromkeys(
            (
                getattr(torch.fft, name)
                for name in dir(torch.fft)
                if "fft" in name and name[0] != "_" and not name.endswith(("freq", "shift"))
            ),
            fft,
        ),
        torch.meshgrid: meshgrid,
        torch._VF.meshgrid: meshgrid,  # type: ignore[attr-defined]
        **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), tensor_split),
        torch._C._nn.pad_sequence: pad_sequence,
        torch.cosine_similarity: cosine_similarity,
        **dict.fromkeys((torch.prod, Tensor.prod), with_waiting_backward("prod")),
        **dict.fromkeys((torch.cumprod, Tensor.cumprod, Tensor.cumprod_), with_waiting_backward("cumprod")),
        **dict.fromkeys((one for one in vars(torch.linalg).values() if isinstance(one, _Builtin)), with_out),
        **dict.fromkeys((torch.tensordot, torch.inner, torch.diff, torch.norm, torch.special.ndtr), with_out),
        **{getattr(torch, name): like for name in LIKE},
        **dict.fromkeys((torch.linspace, torch.logspace), between),
        Tensor.copy_: copy_,
        Tensor.__setitem__: setitem,
    }
)
