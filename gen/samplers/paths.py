"""Which implementation a tensor is sampled with: all have one meaning and, on equal logits, one result."""

import os
from typing import Protocol

from torch import Tensor

from gen.devices import native_cuda
from gen.samplers import cpu_path, torch_path
from gen.samplers.cuts import Cut
from gen.samplers.logits import check_logits
from gen.samplers.parameters import RowParameters


class Path(Protocol):
    """A module of these functions; see `gen.samplers.torch_path`."""

    def most_likely(self, logits: Tensor) -> tuple[Tensor, Tensor]: ...

    def likeliest(self, logits: Tensor, n: int) -> tuple[Tensor, Tensor]: ...

    def draw(self, logits: Tensor, keys: Tensor, parameters: RowParameters) -> tuple[Tensor, Tensor]: ...

    def find_cut(self, logits: Tensor, parameters: RowParameters) -> Cut | None: ...


def path_of(logits: Tensor) -> Path:
    """The fast path on the CPU, whose host branches cost nothing there; elsewhere the one without host syncs.

    With GEN_TRITON=1 in the environment, Triton's kernels on CUDA devices. They are tested under Triton's interpreter
    and compiled to machine code, but have not run on a GPU yet, which is why they are asked for.

    Raises:
        ArgumentError: these are no logits (rows, vocab).
    """
    check_logits(logits)
    if len(logits) == 0:
        return torch_path  # its shapes depend on nothing in the tensors
    if logits.device.type == "cpu":
        return cpu_path
    if os.environ.get("GEN_TRITON") == "1" and native_cuda(logits):
        from gen.samplers import triton_path  # needs triton

        return triton_path
    return torch_path
