"""Brings tokens from the device to the host while the device goes on."""

import torch
from torch import Tensor


class Harvest:
    """The tokens of every step, on the device and, a little later, on the host.

    On CUDA each step's tokens are copied to pinned memory on a stream of their own, and the host reads them one step
    later, after that copy's event: it never waits for the step that it has just launched. Every step has a slot of its
    own, so that nothing is overwritten before it is read. Elsewhere the host reads at once.

    Attributes:
        lag: how many steps the host must be behind when it reads: 1 on CUDA, else 0.
    """

    def __init__(self, steps: int, rows: int, device: torch.device) -> None:
        self._on_device: tuple[Tensor, ...] = (
            torch.zeros((steps, rows), dtype=torch.int64, device=device),
            torch.zeros((steps, rows), dtype=torch.float32, device=device),
        )
        self._on_host: tuple[Tensor, ...] = self._on_device
        self.lag = 0
        if device.type == "cuda":
            self.lag = 1
            self._on_host = tuple(torch.zeros_like(kept, device="cpu").pin_memory() for kept in self._on_device)
            self._copied = [torch.cuda.Event() for _ in range(steps)]  # type: ignore[no-untyped-call]
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for kept in self._on_device:
                kept.record_stream(self._stream)  # a stream that is given up may leave a copy under way

    def push(self, step: int, token_ids: Tensor, logprobs: Tensor) -> None:
        """Keep a step's token_ids (rows, 1) and logprobs (rows,), on the device. Host sync: none."""
        self._on_device[0][step].copy_(token_ids.squeeze(1))
        self._on_device[1][step].copy_(logprobs)
        if self.lag:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            with torch.cuda.stream(self._stream):
                for kept, slot in zip(self._on_device, self._on_host, strict=True):
                    slot[step].copy_(kept[step], non_blocking=True)
                self._copied[step].record(self._stream)

    def read(self, step: int) -> tuple[list[int], list[float]]:
        """A step's token ids and logprobs, one for each row. Host sync: on CUDA a wait for that step's event."""
        if self.lag:
            self._copied[step].synchronize()
        token_ids, logprobs = (kept[step].tolist() for kept in self._on_host)
        return token_ids, logprobs
