"""Rows of exllamav3: each has pages of the model's cache to itself, borrowed for a call and given back after it.

Example, two rows of 300 tokens, in pages of 256; a row finds its tokens through its line of the table:

    row 0     pages 4, 5
    row 1     pages 0, 9
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import finalize

import torch
from torch import Tensor

from gen.devices import to_device
from gen.models.base import Inputs

if TYPE_CHECKING:
    from gen.models.exllama.exllamav3_model import Exllamav3Model

PAGE = 256  # tokens
_CHUNK = 2048  # tokens of a prompt that are read at once


class Exllamav3Rows:
    """See `gen.models.base.Rows`; prompts are read one by one, since exllamav3 has no mask for padding."""

    refillable = True
    replayable = False  # its kernels are no functions of torch
    whole_prompts = False

    def __init__(self, model: "Exllamav3Model", count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._pages: list[list[int]] = [[] for _ in range(count)]
        self._borrowed: list[int] = []
        self._tables: dict[torch.device, Tensor] = {}  # (rows, pages), int64, to copy by
        self._give_back = finalize(self, model.take_back, self._borrowed)
        self._give_back.atexit = False
        self._lengths = torch.zeros(count, dtype=torch.int32, device=model.placement.logits_device)
        self._borrow(length)

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        """See `gen.models.base.Rows.fill`. Host sync: none."""
        placement = self._model.placement
        logits = []
        for row, prompt in zip(range(self.count)[rows], prompts, strict=True):
            table = self._table[row : row + 1].clone()  # in memory of its own, as the kernels want it
            for first in range(0, len(prompt), _CHUNK):
                part = torch.tensor([[*prompt[first : first + _CHUNK]]], dtype=torch.int64, device="cpu")
                past = torch.full((1,), start + first, dtype=torch.int32, device=placement.logits_device)
                last = self._forward(to_device(part, placement.input_device), table, past)
            logits.append(last)
        lengths = torch.tensor([start + len(prompt) for prompt in prompts], dtype=torch.int32, device="cpu")
        self._lengths[rows] = to_device(lengths, placement.logits_device)
        return torch.cat(logits)

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count = len(token_ids)
        token_ids = token_ids.to(self._model.placement.input_device, non_blocking=True)
        logits = self._forward(token_ids, self._table[:count], self._lengths[:count])
        self._lengths[:count].add_(1).clamp_(max=self._table.shape[1] * PAGE - 1)  # those of free rows go on too
        return logits

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`; whole pages are copied."""
        count, used = len(ancestors), -(-view // PAGE)
        with self._model.turn():
            for tensor in self._cache():
                table = self._tables[tensor.device]
                source = table.index_select(0, ancestors.to(tensor.device, non_blocking=True))[:, :used].reshape(-1)
                tensor.index_copy_(0, table[:count, :used].reshape(-1), tensor.index_select(0, source))
        self._lengths[:count].copy_(self._lengths.index_select(0, ancestors))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        used = -(-view // PAGE)
        with self._model.turn():
            for tensor in self._cache():
                table = self._tables[tensor.device][:, :used]
                pages = tensor.index_select(0, table[source])
                into = table[targets]
                tensor.index_copy_(0, into.reshape(-1), pages.repeat(len(into), *[1] * (pages.dim() - 1)))
        self._lengths[targets] = self._lengths[source]

    def moving(self) -> tuple[Tensor, ...]:
        """See `gen.models.base.Rows.moving`."""
        return (self._lengths,)

    def parts(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Rows.parts`; the pages themselves are the model's."""
        device = self._model.placement.logits_device
        yield "the table of pages", self._table, device
        yield "the lengths", self._lengths, device

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`: each row borrows more pages, and nothing is copied.

        Raises:
            NoRoom: the cache has too few free pages.
        """
        self._borrow(length)
        self.length = length

    def give_back(self) -> None:
        """Give the pages back; the rows are not to be used any more. It happens too when nobody has the rows."""
        self._give_back()

    def _borrow(self, length: int) -> None:
        """Let each row have pages for so many tokens."""
        more = -(-length // PAGE) - len(self._pages[0])
        if more <= 0:
            return
        taken = self._model.borrow(more * self.count)
        self._borrowed += taken
        for row, pages in enumerate(self._pages):
            pages += taken[row * more : (row + 1) * more]
        table = torch.tensor(self._pages, dtype=torch.int32, device="cpu")
        placement = self._model.placement
        self._table = to_device(table, placement.logits_device)
        self._tables = {one: to_device(table.long(), one) for one in dict.fromkeys(placement.layer_devices)}

    def _cache(self) -> Iterator[Tensor]:
        """Keys and values of all layers, a page a line."""
        for layer in self._model.cache.layers.values():
            yield from layer.get_tensors()

    def _forward(self, token_ids: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        """The logits (rows, vocab_size) after the last of token_ids (rows, n), which are written after `lengths`."""
        model = self._model
        params = {
            "attn_mode": "flash_attn",
            "cache": model.cache,
            "block_table": table,
            "cache_seqlens": lengths,
            "last_tokens_only": 1,
        }
        with model.turn():
            logits: Tensor = model.exl3_model.forward(token_ids, params)
        logits.record_stream(torch.cuda.current_stream(logits.device))  # it was made on another stream
        return logits[:, -1, : model.vocab_size]
