"""A model of exllamav3 as the decode loop sees it: placement, and the pages of its cache, which rows borrow for a call.

Example, two rows of 300 tokens, in pages of 256; a row finds its tokens through its line of the table:

    row 0     pages 4, 5
    row 1     pages 0, 9

Rows that begin alike may share their first pages: see `gen.models.exllama.page_table`.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from gen.devices import to_device
from gen.models.base import Inputs, NoRoom, Rows
from gen.models.exllama import shared
from gen.models.exllama.page_table import PageTable
from gen.models.exllama.shared import Checkpoint, ExllamaModel, tensors_in
from gen.models.transformers.snapshot import Snapshot

PAGE = 256  # tokens
_CHUNK = 2048  # tokens of a prompt that are read at once


class Exllamav3Model(ExllamaModel):
    """A model of exllamav3 behind `gen.models.base.Model`.

    Attributes:
        exl3_model, cache: the Model and its Cache.
    """

    package = "exllamav3"

    def __init__(self, model: Any, cache: Any, checkpoint: Checkpoint, context_length: int) -> None:
        self.exl3_model, self.cache = model, cache
        self._free = list(range(cache.max_num_tokens // PAGE))
        self._returned: deque[int] = deque()  # given back, but not in `_free` yet
        self._lending = Lock()
        windows = [layer.sliding_window for layer in model if getattr(layer, "sliding_window", -1) > 0]
        layers = (layer.device for layer in model.get_cache_layers())
        places = (model.modules[0].device, *layers, model.output_device)
        super().__init__(checkpoint, model.config.vocab_size, context_length, windows, places)

    @property
    def free_pages(self) -> int:
        """How many pages of 256 tokens no call has borrowed."""
        return len(self._free) + len(self._returned)

    def turn(self) -> AbstractContextManager[None]:
        """A block in which nobody else launches on exllamav3; see `gen.models.exllama.shared.Turns`."""
        return shared.EXLLAMAV3(self.placement.logits_device, self.placement.devices)

    def new_rows(self, count: int, length: int) -> "Exllamav3Rows":
        """See `gen.models.base.Model.new_rows`.

        Raises:
            NoRoom: the cache has too few free pages.
        """
        return Exllamav3Rows(self, count, length)

    def borrow(self, count: int) -> list[int]:
        """Pages of the cache that no other call has.

        Raises:
            NoRoom: there are too few.
        """
        with self._lending:
            while self._returned:
                self._free.append(self._returned.popleft())
            if count > len(self._free):
                raise NoRoom(
                    f"the cache of {self.cache.max_num_tokens} tokens has {len(self._free)} free pages of {PAGE} "
                    f"tokens, {count} are needed: give gen.from_exllamav3 a larger max_num_tokens, or let other calls "
                    "end first."
                )
            taken, self._free = self._free[:count], self._free[count:]
        return taken

    def take_back(self, pages: Iterable[int]) -> None:
        """Take back pages that a call no longer needs; takes no lock, since finalisers call it."""
        self._returned.extend(pages)

    def check(self) -> Snapshot:
        """See `gen.models.base.Model.check`."""
        return Snapshot([tensor for _, tensor, _ in self.weights()])

    def version(self, checked: Snapshot) -> tuple[int, ...]:
        """See `gen.models.base.Model.version`."""
        return checked.versions()

    def working_memory(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Model.working_memory`: the cache."""
        for layer in self.cache.layers.values():
            for tensor in layer.get_tensors():
                yield f"the cache of {layer.attention.key}", tensor, torch.device(layer.attention.device)

    def weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """All weights: a name, the tensor, and the device that its module was given."""
        for module in self.exl3_model:
            if module.device is not None:
                device = torch.device(module.device)
                for name, value in vars(module).items():
                    for tensor in tensors_in(value, _held):
                        yield f"{module.key}.{name}", tensor, device


def _held(value: Any) -> Iterable[Any]:
    """The tensors of an object that holds a module's weights or rotations."""
    own = type(value).__module__.startswith(("exllamav3.modules.quant", "exllamav3.util.rope"))
    return [held for held in vars(value).values() if isinstance(held, Tensor)] if own else ()


class Exllamav3Rows(Rows):
    """See `gen.models.base.Rows`; prompts are read one by one, since exllamav3 has no mask for padding."""

    refillable = True
    whole_prompts = False
    reads_places = lent = saves = True

    def __init__(self, model: Exllamav3Model, count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._pages = PageTable(count)
        self._borrowed: list[int] = []
        self._tables: dict[torch.device, Tensor] = {}  # (rows, pages), int64, for copies
        self._give_back = finalize(self, model.take_back, self._borrowed)
        self._give_back.atexit = False
        self._lengths = torch.zeros(count, dtype=torch.int32, device=model.placement.logits_device)
        self._borrow(length)

    def prefill(
        self,
        rows: slice,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int] = (),
        places: Sequence[int] = (),
        inputs: Sequence[Inputs] = (),
    ) -> Tensor:
        """See `gen.models.base.Rows.prefill`. Host sync: none."""
        each = zip(range(self.count)[rows], prompts, starts or [0] * len(prompts), strict=True)
        read = [
            self._read(row, prompt, start, [min(place, len(prompt) - 1) for place in places] or [len(prompt) - 1])
            for row, prompt, start in each
        ]
        return torch.stack(read) if places else torch.cat(read)

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count = len(token_ids)
        token_ids = token_ids.to(self._model.placement.input_device, non_blocking=True)
        logits = self._forward(token_ids, self._table[:count], self._lengths[:count])[:, -1]
        self._lengths[:count].add_(1).clamp_(max=self._table.shape[1] * PAGE - 1)  # the lengths of free rows grow too
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
        self._part(targets, 0)
        self._copy_pages(source, targets, slice(-(-view // PAGE)))

    def share(self, source: int, targets: slice, columns: int) -> None:
        """See `gen.models.base.Rows.share`: whole pages are shared, and the rest is copied."""
        whole = columns // PAGE
        for target in range(self.count)[targets]:
            self._pages.share(source, target, whole)
            self._pages.part(target, whole)
        self._set_table()
        self._copy_pages(source, targets, slice(whole, -(-columns // PAGE)))

    def save(self, row: int, start: int, end: int) -> dict[Hashable, Tensor]:
        """See `gen.models.base.Rows.save`."""
        with self._model.turn():
            return {
                number: _by_token(tensor).index_select(0, self._lines(row, start, end, tensor.device))
                for number, tensor in enumerate(self._cache())
            }

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """See `gen.models.base.Rows.load`."""
        self._part(slice(row, row + 1), start)
        with self._model.turn():
            for number, tensor in enumerate(self._cache()):
                lines = self._lines(row, start, start + len(columns[number]), tensor.device)
                _by_token(tensor).index_copy_(0, lines, columns[number])

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
        """Give the pages back; do not use the rows any more. This also happens when the rows are garbage-collected."""
        self._give_back()

    def _borrow(self, length: int) -> None:
        """Borrow pages, until each row has room for this many tokens."""
        more = -(-length // PAGE) - len(self._pages.rows[0])
        if more <= 0:
            return
        taken = self._model.borrow(more * self.count)
        self._borrowed += taken
        self._pages.grow(taken)
        self._set_table()

    def _part(self, rows: slice, start: int) -> None:
        """Give rows pages of their own from the token `start` on, so that they can write there."""
        parted = [self._pages.part(row, start // PAGE) for row in range(self.count)[rows]]
        if any(parted):
            self._set_table()
        begun = [places[start // PAGE] for places in parted if start % PAGE and start // PAGE in places]
        with self._model.turn() if begun else nullcontext():
            for tensor in self._cache() if begun else ():
                for before, page in begun:
                    tensor[page].copy_(tensor[before])

    def _set_table(self) -> None:
        table = torch.tensor(self._pages.rows, dtype=torch.int32, device="cpu")
        placement = self._model.placement
        self._table = to_device(table, placement.logits_device)
        self._tables = {one: to_device(table.long(), one) for one in dict.fromkeys(placement.layer_devices)}

    def _lines(self, row: int, start: int, end: int, device: torch.device) -> Tensor:
        """Where a row's tokens are, counted over all pages; (end - start,), int64."""
        places, pages = torch.arange(start, end, device="cpu"), torch.tensor(self._pages.rows[row], device="cpu")
        return to_device(pages[places // PAGE] * PAGE + places % PAGE, device)

    def _copy_pages(self, source: int, targets: slice, places: slice) -> None:
        """Copy some of a row's pages, and how many tokens it has."""
        with self._model.turn():
            for tensor in self._cache():
                table = self._tables[tensor.device][:, places]
                pages = tensor.index_select(0, table[source])
                into = table[targets]
                tensor.index_copy_(0, into.reshape(-1), pages.repeat(len(into), *[1] * (pages.dim() - 1)))
        self._lengths[targets] = self._lengths[source]

    def _read(self, row: int, token_ids: Sequence[int], start: int, places: Sequence[int]) -> Tensor:
        """Read tokens into a row that has `start` tokens; the logits (len(places), vocab_size) after some."""
        placement = self._model.placement
        self._part(slice(row, row + 1), start)
        table = self._table[row : row + 1].clone()  # in memory of its own, as the kernels want it
        made = []
        for first in range(0, len(token_ids), _CHUNK):
            chunk = token_ids[first : first + _CHUNK]
            wanted = [place - first for place in places if first <= place < first + len(chunk)]
            last = len(chunk) - min(wanted, default=len(chunk) - 1)
            part = torch.tensor([[*chunk]], dtype=torch.int64, device="cpu")
            past = torch.full((1,), start + first, dtype=torch.int32, device=placement.logits_device)
            logits = self._forward(to_device(part, placement.input_device), table, past, last)
            if wanted:
                at = torch.tensor(wanted, device="cpu") - (len(chunk) - last)
                made.append(logits[0].index_select(0, to_device(at, logits.device)))
        self._lengths[row].fill_(start + len(token_ids))
        return torch.cat(made)

    def _cache(self) -> Iterator[Tensor]:
        """Keys and values of all layers, one page per line."""
        for layer in self._model.cache.layers.values():
            yield from layer.get_tensors()

    def _forward(self, token_ids: Tensor, table: Tensor, lengths: Tensor, last: int = 1) -> Tensor:
        """The logits (rows, last, vocab_size) after the last of token_ids (rows, n), written after `lengths`."""
        model = self._model
        params = {
            "attn_mode": "flash_attn",
            "cache": model.cache,
            "block_table": table,
            "cache_seqlens": lengths,
            "last_tokens_only": last,
        }
        with model.turn():
            logits: Tensor = model.exl3_model.forward(token_ids, params)
        logits.record_stream(torch.cuda.current_stream(logits.device))  # it was made on another stream
        return logits[:, -last:, : model.vocab_size]


def _by_token(tensor: Tensor) -> Tensor:
    """(pages * PAGE, width) of (pages, PAGE, ...): a view."""
    return tensor.view(len(tensor) * PAGE, -1)
