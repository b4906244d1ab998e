"""Rows that all end in one column, for models that count back from the end of the cache: filled once, padded left."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.devices import to_device
from gen.models.base import Rows

if TYPE_CHECKING:
    from gen.models.transformers.model import TransformersModel


class AlignedRows(Rows):
    """See `gen.models.base.Rows`. The cache grows by one column per step, so its end is always the newest token."""

    def __init__(self, model: "TransformersModel", count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        device = model.placement.input_device
        self._cache: Any = None  # made by `prefill`
        self._mask = torch.zeros((0, 0), dtype=torch.bool, device=device)  # (rows, columns)
        self._position = torch.zeros((0, 1), dtype=torch.int64, device=device)

    def prefill(self, rows: slice, prompts: Sequence[Sequence[int]], *_: object, **__: object) -> Tensor:
        """See `gen.models.base.Rows.prefill`; all rows are filled at once, the rows of each prompt side by side."""
        from transformers.cache_utils import DynamicCache

        device, width = self._mask.device, max(map(len, prompts))
        token_ids = torch.tensor(
            [[*[prompt[0]] * (width - len(prompt)), *prompt] for prompt in prompts], dtype=torch.int64, device="cpu"
        )  # padded with the prompt's own token, so that no other token's NaN gets into its row
        mask = torch.zeros((len(prompts), width), dtype=torch.bool, device="cpu")
        for row, prompt in enumerate(prompts):
            mask[row, width - len(prompt) :] = True
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self._mask, self._position = to_device(mask, device), to_device(positions[:, -1:], device)
        self._cache = DynamicCache(config=self._model.decoder_config)
        logits = self._forward(to_device(token_ids, device), to_device(positions, device))
        if rows.step is not None and rows.step > 1:
            self.reorder(torch.arange(rows.stop, device=device) // rows.step, width)
        return logits

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`; it takes all rows."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=True)
        self._position.add_(1).clamp_(max=self._model.context_length - 1)
        return self._forward(token_ids.to(self._mask.device, non_blocking=True), self._position)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`; there may be more rows than before."""
        self._cache.reorder_cache(ancestors)
        own = ancestors.to(self._mask.device, non_blocking=True)
        self._mask, self._position = self._mask.index_select(0, own), self._position.index_select(0, own)

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`; `fill` has made the rows of a prompt already."""

    def parts(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Rows.parts`."""
        layers = () if self._cache is None else self._cache.layers
        for number, (layer, device) in enumerate(zip(layers, self._model.placement.layer_devices, strict=False)):
            for name in ("keys", "values"):
                if isinstance(states := getattr(layer, name, None), Tensor):
                    yield f"the cache's {name} of layer {number}", states, device
        yield "the attention mask", self._mask, self._model.placement.input_device
        yield "the positions", self._position, self._model.placement.input_device

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`."""
        self.length = length

    def _forward(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self._model.forward(token_ids, positions, self._mask, self._cache)
