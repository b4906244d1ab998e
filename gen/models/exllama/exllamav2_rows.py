"""Rows of exllamav2: its cache has one length for all rows, so prompts are padded on the left and filled once.

Example, two prompts and a step; "." is padding, which is masked, and the offset makes `c` the first position:

    column    0   1   2   3
    row 0     a   b   c   d
    row 1     .   .   c   e     offset -2
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.devices import to_device
from gen.errors import ModelError
from gen.models.base import Inputs

if TYPE_CHECKING:
    from gen.models.exllama.exllamav2_model import Exllamav2Model

_MASKED = -3e4  # added to scores: far below every score, and the sum is still a finite float16


class Exllamav2Rows:
    """See `gen.models.base.Rows`."""

    refillable = False
    replayable = False
    whole_prompts = True

    def __init__(self, model: "Exllamav2Model", count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._cache = model.new_cache(count, length)
        self._columns = 0  # how many are written
        self._masks: dict[torch.device, Tensor] = {}  # on each device of layers, where there is padding
        self._offsets: dict[torch.device, Tensor] = {}

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        """See `gen.models.base.Rows.fill`; all rows are filled at once.

        exllamav2 reads prompts in pieces of 2048 tokens x max_batch_size.

        Raises:
            ModelError: a prompt is longer than a window of the model.
        Host sync: one for each piece, whose causal mask exllamav2 makes on the CPU.
        """
        width, count = max(map(len, prompts)), len(prompts)
        if self._model.window is not None and width > self._model.window:
            raise ModelError(
                f"exllamav2 misreads prompts that are longer than this model's window of {self._model.window} "
                f"tokens, got {width}; give a shorter one, or load the original checkpoint with gen.load."
            )
        self._columns = self._cache.current_seq_len = 0
        self._masks, self._offsets = {}, {}
        self._make_room(width + 1)
        token_ids = torch.tensor(
            [[*[prompt[0]] * (width - len(prompt)), *prompt] for prompt in prompts], dtype=torch.int64, device="cpu"
        )
        given = self._pad(rows, [width - len(prompt) for prompt in prompts], width)
        logits = self._forward(to_device(token_ids, self._model.placement.input_device), given)
        if rows.step is not None and rows.step > 1:
            with self._model.turn():
                for tensor in self._cache.all_tensors():
                    tensor[rows, : self._used].copy_(tensor[:count, : self._used].clone())
        return logits

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`; it takes all rows.

        Host sync: none, or two with the embedding on the CPU.
        """
        self._make_room(self._columns + 1)
        device = self._model.placement.input_device
        token_ids = token_ids.to(device, non_blocking=device.type == "cuda")  # a copy to the CPU has to wait
        return self._forward(token_ids, {"attn_params": self._step_params(len(token_ids))})

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`."""
        count = len(ancestors)
        with self._model.turn():
            for tensor in self._cache.all_tensors():
                rows = ancestors.to(tensor.device, non_blocking=True)
                tensor[:count, : self._used].copy_(tensor[:, : self._used].index_select(0, rows))
        for kept in (self._masks, self._offsets):
            for device, tensor in kept.items():
                tensor[:count].copy_(tensor.index_select(0, ancestors.to(device, non_blocking=True)))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        with self._model.turn():
            for tensor in self._cache.all_tensors():
                tensor[targets, : self._used] = tensor[source, : self._used]
        for kept in (*self._masks.values(), *self._offsets.values()):
            kept[targets] = kept[source]

    def moving(self) -> tuple[Tensor, ...]:
        """See `gen.models.base.Rows.moving`."""
        return ()

    def parts(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Rows.parts`."""
        devices = self._model.placement.layer_devices
        for number, tensor in enumerate(self._cache.all_tensors()):  # keys of all layers, then values, then scales
            yield f"the cache's tensor {number}", tensor, devices[number % len(devices)]
        for device, mask in self._masks.items():
            yield "the attention mask", mask, device
        for device, offsets in self._offsets.items():
            yield "the offsets", offsets, device

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`."""
        self._make_room(length)
        self.length = length

    @property
    def _used(self) -> int:
        """How many columns of the cache count: those that are written, in whole blocks."""
        block = self._model.cache_block
        return -(-self._columns // block) * block

    def _pad(self, rows: slice, padding: Sequence[int], width: int) -> dict[str, Tensor]:
        """Keep masks and offsets of padded prompts, and return exllamav2's arguments for them; {} without padding."""
        if not any(padding):  # then it may use flash-attn, where that is installed
            return {}
        columns = torch.arange(self._cache.max_seq_len, device="cpu")
        padded = columns < torch.tensor(padding, device="cpu").unsqueeze(1)
        mask = torch.zeros((self.count, 1, 1, len(columns)), dtype=torch.float16, device="cpu")
        mask[rows, 0, 0] = torch.zeros(padded.shape, dtype=torch.float16, device="cpu").masked_fill_(padded, _MASKED)
        offsets = torch.zeros((self.count, 1), dtype=torch.int32, device="cpu")
        offsets[rows, 0] = -torch.tensor(padding, dtype=torch.int32, device="cpu")
        for device in dict.fromkeys(self._model.placement.layer_devices):
            self._masks[device], self._offsets[device] = to_device(mask, device), to_device(offsets, device)
        first = self._model.placement.layer_devices[0]
        return {
            "input_mask": self._masks[first][rows, 0, 0, :width],
            "position_offsets": self._offsets[first][rows],
        }

    def _forward(self, token_ids: Tensor, given: dict[str, Any]) -> Tensor:
        """The logits after the last of token_ids (rows, n), which are written into the cache."""
        model = self._model
        with model.turn():
            logits: Tensor = model.exl2_model.forward(
                token_ids, self._cache, last_id_only=True, loras=model.loras, **given
            )
        logits.record_stream(torch.cuda.current_stream(logits.device))  # it was made on exllamav2's stream
        self._columns = self._cache.current_seq_len
        return logits[:, -1, : model.vocab_size]

    def _step_params(self, rows: int) -> Any:
        """exllamav2's parameters of attention, with masks and offsets that are on each device already.

        exllamav2's own parameters copy them from layer to layer, and wait where the device changes.
        """
        masks = {device: mask[:rows, ..., : self._columns + 1] for device, mask in self._masks.items()}
        offsets = {device: tensor[:rows] for device, tensor in self._offsets.items()}
        beyond = self._columns + 1 - self._model.exl2_model.config.max_seq_len
        if beyond > 0:  # rows past the end of their context stay within the tables of positions
            for device in self._model.placement.layer_devices:
                own = offsets.get(device, torch.zeros((rows, 1), dtype=torch.int32, device=device))
                offsets[device] = own.clamp(max=-beyond)
        first = self._model.placement.layer_devices[0]
        params = self._model.params_class(rows, 1, self._columns, masks.get(first), offsets.get(first))
        params.get_attn_mask = lambda device, force=False: masks.get(torch.device(device))
        params.get_position_offsets = lambda device: offsets[torch.device(device)]
        return params

    def _make_room(self, columns: int) -> None:
        """Make room for this many columns; a short row beside long ones needs more columns than it has tokens."""
        old = self._cache
        if columns <= old.max_seq_len:
            return
        self._cache = new = self._model.new_cache(self.count, max(columns, 2 * old.max_seq_len))
        new.current_seq_len = old.current_seq_len
        with self._model.turn():
            for into, tensor in zip(new.all_tensors(), old.all_tensors(), strict=True):
                into[:, : self._used].copy_(tensor[:, : self._used])
        more = new.max_seq_len - old.max_seq_len
        self._masks = {device: torch.nn.functional.pad(mask, (0, more)) for device, mask in self._masks.items()}
