"""Brings results from the device to the host while the device goes on."""

from typing import Any

import torch
from torch import Tensor


class Harvest:
    """Small results of every step, on the device and, a little later, on the host.

    On CUDA each step's results are copied to pinned memory on a stream of their own, and the host reads them one step
    later, after that copy's event: it never waits for the step that it has just launched. Every step has a slot of its
    own, so that nothing is overwritten before it is read. Elsewhere the host reads at once.

    Args:
        like: for each kept result a tensor of its shape, dtype and device; all are on one device.

    Attributes:
        lag: how many steps the host must be behind when it reads: 1 on CUDA, else 0.
    """

    def __init__(self, steps: int, *like: Tensor) -> None:
        self._on_device = [torch.zeros((steps, *one.shape), dtype=one.dtype, device=one.device) for one in like]
        self._on_host = self._on_device
        self.lag = 0
        device = like[0].device
        if device.type == "cuda":
            self.lag = 1
            self._on_host = [torch.zeros_like(kept, device="cpu").pin_memory() for kept in self._on_device]
            self._copied = [torch.cuda.Event() for _ in range(steps)]  # type: ignore[no-untyped-call]
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for kept in self._on_device:
                kept.record_stream(self._stream)  # a loop that is given up may leave a copy under way

    def push(self, step: int, *results: Tensor) -> None:
        """Keep a step's results. Host sync: none."""
        for kept, result in zip(self._on_device, results, strict=True):
            kept[step].copy_(result)
        if self.lag:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            with torch.cuda.stream(self._stream):
                for kept, slot in zip(self._on_device, self._on_host, strict=True):
                    slot[step].copy_(kept[step], non_blocking=True)
                self._copied[step].record(self._stream)

    def read(self, step: int) -> Any:
        """A step's results as nested lists. Host sync: on CUDA a wait for that step's event."""
        if self.lag:
            self._copied[step].synchronize()
        return [kept[step].tolist() for kept in self._on_host]
