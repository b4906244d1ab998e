"""Rows of an exported program: it has no cache, so the rows are the tokens, and each step reads all of them again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from gen.devices import to_device
from gen.models.base import Inputs

if TYPE_CHECKING:
    from gen.models.exported.program import ExportedModel


class ExportedRows:
    """See `gen.models.base.Rows`."""

    refillable = True
    replayable = False
    whole_prompts = True

    def __init__(self, model: "ExportedModel", count: int, length: int) -> None:
        device = model.placement.input_device
        self._model = model
        self.count, self.length = count, length
        self._token_ids = torch.zeros((count, length), dtype=torch.int64, device=device)  # padded on the right
        self._lengths = torch.ones(count, dtype=torch.int64, device=device)

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        """See `gen.models.base.Rows.fill`."""
        width = max(map(len, prompts))
        token_ids = torch.zeros((len(prompts), width), dtype=torch.int64, device="cpu")
        for row, prompt in enumerate(prompts):
            token_ids[row, : len(prompt)] = torch.tensor(prompt, device="cpu")
        self._token_ids[rows, :width] = to_device(token_ids, self._lengths.device)
        self._lengths[rows] = to_device(torch.tensor([*map(len, prompts)], device="cpu"), self._lengths.device)
        return self._model.forward(self._token_ids[rows, :width], self._lengths[rows])

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count = len(token_ids)
        lengths = self._lengths[:count]
        self._token_ids[:count].scatter_(1, lengths.unsqueeze(1), token_ids)
        lengths.add_(1).clamp_(max=self.length - 1)
        return self._model.forward(self._token_ids[:count, : min(view, self._model.context_length)], lengths)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`."""
        for tensor in (self._token_ids[: len(ancestors), :view], self._lengths[: len(ancestors)]):
            tensor.copy_(tensor.index_select(0, ancestors))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        for tensor in (self._token_ids[:, :view], self._lengths):
            tensor[targets].copy_(tensor[source])

    def moving(self) -> tuple[Tensor, ...]:
        """See `gen.models.base.Rows.moving`."""
        return (self._lengths,)

    def parts(self) -> tuple[tuple[str, Tensor, torch.device], ...]:
        """See `gen.models.base.Rows.parts`."""
        device = self._model.placement.input_device
        return ("the token ids", self._token_ids, device), ("the lengths", self._lengths, device)

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`."""
        self._token_ids = pad(self._token_ids, (0, length - self.length))
        self.length = length
