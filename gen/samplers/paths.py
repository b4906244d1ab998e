"""Which implementation a tensor is sampled with: all have one meaning and, on equal logits, one result."""

from typing import Protocol

from torch import Tensor

from gen.samplers import cpu_path, torch_path
from gen.samplers.cuts import Cut
from gen.samplers.parameters import RowParameters


class Path(Protocol):
    """A module of these functions; see `gen.samplers.torch_path`."""

    def most_likely(self, logits: Tensor) -> tuple[Tensor, Tensor]: ...

    def likeliest(self, logits: Tensor, n: int) -> tuple[Tensor, Tensor]: ...

    def draw(self, logits: Tensor, keys: Tensor, parameters: RowParameters) -> tuple[Tensor, Tensor]: ...

    def find_cut(self, logits: Tensor, parameters: RowParameters) -> Cut | None: ...


def path_of(logits: Tensor) -> Path:
    """The fast path on the CPU, whose host branches cost nothing there; elsewhere the one without host syncs."""
    return cpu_path if logits.device.type == "cpu" else torch_path
