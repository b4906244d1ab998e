"""Devices: resolved once, recorded, and compared."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import index

import torch
from torch import Tensor

from gen.errors import DeviceError, show, show_path


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a model's parts are; decided once, when the adapter is made.

    Attributes:
        input_device: the embedding's device, to which token ids, attention mask and positions go.
        logits_device: the device of the logits, of sampling, and of all state of the decode loop.
        layer_devices: a device for each decoder layer and its part of the KV cache, in order.
        vision_device: the vision part's device, to which pixel values go; None without a vision part.
        dtype: the dtype of the weights and of the computation.
        packed_dtype: the dtype in which packed weights are stored, which compute as `dtype`; None without any.
        offloaded: whether some weights are stored on another device than the one that computes with them.
        has_cache: whether decode steps reuse keys and values; False means that each step recomputes the prefix.
    """

    input_device: torch.device
    logits_device: torch.device
    layer_devices: tuple[torch.device, ...] = field(default=())
    vision_device: torch.device | None = None
    dtype: torch.dtype = torch.float32
    packed_dtype: torch.dtype | None = None
    offloaded: bool = False
    has_cache: bool = True

    def __post_init__(self) -> None:
        refuse_mps(*self.devices)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that the model uses, each once, in the order of the data."""
        vision = (self.vision_device,) if self.vision_device is not None else ()
        return tuple(dict.fromkeys((self.input_device, *vision, *self.layer_devices, self.logits_device)))

    def __str__(self) -> str:
        devices = ", ".join(map(str, self.devices))
        packed = f", weights {_bare(self.packed_dtype)}" if self.packed_dtype else ""
        offloaded = ", some weights offloaded" if self.offloaded else ""
        return f"{devices} ({_bare(self.dtype)}{packed}{offloaded})"


def _bare(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(kind: str, name: object, placement: Placement) -> str:
    """How a model is shown, such as "<LlamaForCausalLM 'path' on cuda:1 (float32)>"."""
    return f"<{kind}{f' {show_path(name)}' if name else ''} on {placement}>"


def available_devices() -> list[torch.device]:
    """The devices of this machine that `resolve_device` accepts: cpu, then every CUDA device."""
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]


def resolve_device(device: str | int | torch.device | None = None) -> torch.device:
    """Turn a user's device into one with an index, here and now, in the caller's thread.

    A bare "cuda" is the caller's current CUDA device: another thread, or a later moment, may have another one. That is
    why adapters call this once, at init, and keep the result.

    Args:
        device: a name such as "cuda:1", an index of a CUDA device, a torch.device, or None for the caller's current
            CUDA device, or the CPU if there is no CUDA device.
    Raises:
        DeviceError: the name cannot be read, the device does not exist on this machine, or it is mps.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    exists = ", ".join(map(str, available_devices()))
    try:
        if isinstance(device, bool):
            raise TypeError("a bool is no index")
        wanted = torch.device("cuda", index(device)) if hasattr(device, "__index__") else torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"{show(device)} names no device; this machine has {exists}.") from error
    if wanted.type == "cpu":
        return torch.device("cpu")
    refuse_mps(wanted)
    if wanted.index is None:
        current = torch.cuda.current_device() if wanted.type == "cuda" and torch.cuda.is_available() else 0
        wanted = torch.device(wanted.type, current)
    if wanted not in available_devices():
        raise DeviceError(f"device {wanted} does not exist; this machine has {exists}.")
    return wanted


def refuse_mps(*devices: torch.device) -> None:
    """Raise a DeviceError if one of the devices is mps."""
    if any(device.type == "mps" for device in devices):
        raise DeviceError(
            "gen does not run on mps, which has no float64: the samplers draw in it. Use device='cpu', or move a model "
            "that is loaded already: model.to('cpu')."
        )


def current(device: torch.device) -> AbstractContextManager[object]:
    """A context manager that makes a CUDA device the thread's current one; for other devices it does nothing.

    Torch's own operations run where their tensors are. Kernels that are not torch's are launched on the current device.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device. For CUDA the copy goes through pinned memory, and the host does not wait."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def native_cuda(tensor: Tensor) -> bool:
    """Whether a tensor is in the memory of a CUDA device, so that kernels may be launched on it.

    False for a tensor on a virtual GPU: it says that it is on cuda:0, but it is a subclass with its numbers on the CPU.
    """
    return tensor.is_cuda and type(tensor) in (Tensor, torch.nn.Parameter)


def runs_triton(tensor: Tensor) -> bool:
    """Whether gen's Triton kernels do what they can: on a CUDA device, with GEN_TRITON=1 in the environment.

    They are tested under Triton's interpreter and compiled to machine code, but have not run on a GPU yet, so they are
    off unless you ask for them.
    """
    return native_cuda(tensor) and os.environ.get("GEN_TRITON") == "1"


def check_same_device(logits: Tensor, name: str, tensor: Tensor) -> None:
    """Raise a DeviceError, which says how to move it, if a tensor is not where the logits are."""
    if tensor.device == logits.device:
        return
    given = {"logits": logits, name: tensor}
    lines = "\n".join(f"  on {one.device}: {what} {tuple(one.shape)} {_bare(one.dtype)}" for what, one in given.items())
    raise DeviceError(
        f"expected all tensors on one device, found 2:\n{lines}\n"
        f"Move the others: {name} = {name}.to({str(logits.device)!r})"
    )
