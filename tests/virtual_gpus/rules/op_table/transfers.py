"""Factories and copies between devices: where the result is, and which of them the host waits for.

Source: aten/src/ATen/native/cuda/Copy.cu; a copy from or to pageable memory waits, one between GPUs does not.
"""

import torch

from tests.virtual_gpus.rules.op_table.cases import GPU0, GPU1, HOST, Case, floats

TRANSFERS = [
    Case("to: CPU to GPU", lambda a: a.to(GPU0), (floats(HOST, 2),), GPU0, 1),
    Case("to: GPU to CPU", lambda a: a.to("cpu"), (floats(GPU0, 2),), HOST, 1),
    Case("to: GPU to GPU", lambda a: a.to(GPU1), (floats(GPU0, 2),), GPU1),
    Case("to: dtype alone", lambda a: a.to(torch.float64), (floats(GPU1, 2),), GPU1),
    Case("to: like another tensor", lambda a, b: a.to(b), (floats(GPU0, 2), floats(GPU1, 2)), GPU1),
    Case("to: nothing to copy", lambda a: a.to("cpu"), (floats(GPU0, 0),), HOST),
    Case("to: not blocking, into pinned memory", lambda a: a.to("cpu", non_blocking=True), (floats(GPU0, 2),), HOST),
    Case("cuda: the current device", lambda a: a.cuda(), (floats(HOST, 2),), GPU0, 1),
    Case("cpu", lambda a: a.cpu(), (floats(GPU1, 2),), HOST, 1),
    Case("pinned to GPU, not blocking", lambda a: a.pin_memory().to(GPU0, non_blocking=True), (floats(HOST, 2),), GPU0),
    Case("pinned to GPU, blocking", lambda a: a.pin_memory().to(GPU0), (floats(HOST, 2),), GPU0, 1),
    Case("copy_: GPU to GPU", lambda a, b: a.copy_(b), (floats(GPU0, 2), floats(GPU1, 2)), GPU0),
    Case("copy_: GPU to CPU", lambda a, b: a.copy_(b), (floats(HOST, 2), floats(GPU0, 2)), HOST, 1),
    Case("copy_: CPU to GPU", lambda a, b: a.copy_(b), (floats(GPU0, 2), floats(HOST, 2)), GPU0, 1),
    Case("zeros_like", torch.zeros_like, (floats(GPU1, 2),), GPU1),
    Case("new_zeros", lambda a: a.new_zeros(3), (floats(GPU1, 2),), GPU1),
    Case("new_tensor", lambda a: a.new_tensor([1.0]), (floats(GPU1, 2),), GPU1, 1),
    Case("zeros", lambda a: torch.zeros(3, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("arange", lambda a: torch.arange(3, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("full", lambda a: torch.full((3,), 0.5, device=a.device), (floats(GPU1, 2),), GPU1),
    Case("tensor", lambda a: torch.tensor([1, 2], device=a.device), (floats(GPU1, 2),), GPU1, 1),
]
