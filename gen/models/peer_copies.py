"""Tries copies between the GPUs of a model that is spread over several, once when gen takes the model over.

On some machines, copies from one GPU to another arrive as zeros, as old numbers or in part, without an error, and the
texts are garbage. The reason is the machine's settings, mostly an IOMMU or PCIe's access control (ACS). On others each
pair of GPUs is right, and what a GPU passes on to a third one is not.
"""

from collections.abc import Iterable
from itertools import permutations

import torch
from torch import Tensor

from gen.errors import DeviceError

_BYTES = (2**17, 2**24)  # a hidden state of a step, and one of a long prompt: they may take different paths
_AT_ONCE = 256  # copies that are issued before the host waits


def check_peer_copies(devices: Iterable[torch.device]) -> None:
    """Copy numbers from each CUDA device to each other one; then let each pass on what it has received, many times and
    at last with many numbers, before the host waits.

    Args:
        devices: those of one model; others than CUDA devices do not count.
    Raises:
        DeviceError: a copy came out wrong; the message names the devices.
    Host sync: four for each pair; this is at load.
    """
    gpus = list(dict.fromkeys(device for device in devices if device.type == "cuda"))
    if len(gpus) < 2:
        return
    free = min(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)
    small, large = (_numbers(gpus, min(size, free // 8)) for size in _BYTES)
    for sent in (small, large):
        for source, target in permutations(gpus, 2):
            wrong = int((sent[source].to(target) != sent[target]).sum())
            if wrong:
                raise _error(f"a copy from {source} to {target}", wrong, len(sent[source]), source)
    rounds = -(-_AT_ONCE // (len(gpus) * (len(gpus) - 1)))
    passed_on = _passed_on(small, rounds), _passed_on(large, 1)  # both, before the host looks at either
    for held, sent in zip(passed_on, (small, large), strict=True):
        wrong = sum(int((held[gpu] != sent[gpu]).sum()) for gpu in gpus)
        if wrong:
            names = ", ".join(map(str, gpus))
            raise _error(f"copies that {names} pass on to each other", wrong, len(held) * len(held[gpus[0]]), gpus[0])


def _numbers(gpus: list[torch.device], size: int) -> dict[torch.device, Tensor]:
    """The same numbers on each GPU, of so many bytes, copied from the host."""
    numbers = torch.arange(1, max(size // 4, 1) + 1, dtype=torch.int32, device="cpu")
    return {gpu: numbers.to(gpu) for gpu in gpus}


def _passed_on(sent: dict[torch.device, Tensor], rounds: int) -> dict[torch.device, Tensor]:
    """What each GPU holds after each has given each other one what it held, in turn. Host sync: none."""
    gpus, held = list(sent), dict(sent)
    for _ in range(rounds):
        for shift in range(1, len(gpus)):
            held = {gpu: held[gpus[number - shift]].to(gpu) for number, gpu in enumerate(gpus)}
    return held


def _error(what: str, wrong: int, count: int, gpu: torch.device) -> DeviceError:
    return DeviceError(
        f"{what} came out wrong in {wrong} of {count} numbers, so that a model spread over these GPUs would write "
        "garbage. The machine is set up wrongly, mostly an IOMMU or PCIe's access control (ACS) that should be off: "
        f"see NVIDIA's notes on peer-to-peer copies. Until then put the model on one GPU with device={str(gpu)!r}."
    )
