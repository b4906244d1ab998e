"""Tries copies between the GPUs of a model that is spread over several, once when gen takes the model over.

On some machines, copies from one GPU to another arrive as zeros or as old numbers without an error, and the texts are
garbage. The reason is the machine's settings, mostly an IOMMU or PCIe's access control (ACS).
"""

from collections.abc import Iterable
from itertools import permutations

import torch

from gen.errors import DeviceError

_NUMBERS = 2**16  # half a megabyte: smaller copies may take another path than hidden states do


def check_peer_copies(devices: Iterable[torch.device]) -> None:
    """Copy numbers from each CUDA device to each other one, and read them back.

    Raises:
        DeviceError: a copy came out wrong; the message names both devices.
    Host sync: two for each pair; this is at load.
    """
    gpus = dict.fromkeys(device for device in devices if device.type == "cuda")
    sent = torch.arange(1, _NUMBERS + 1, device="cpu")
    for source, target in permutations(gpus, 2):
        arrived = sent.to(source).to(target).cpu()
        wrong = int((arrived != sent).sum())
        if wrong:
            raise DeviceError(
                f"a copy from {source} to {target} came out wrong in {wrong} of {_NUMBERS} numbers, so that a model "
                "spread over both would write garbage. The machine is set up wrongly, mostly an IOMMU or PCIe's "
                "access control (ACS) that should be off: see NVIDIA's notes on peer-to-peer copies. Until then put "
                f"the model on one GPU with device={str(source)!r}."
            )
