"""A model of exllamav2 as the decode loop sees it: placement, rows, LoRAs, and turns on exllamav2's streams.

Its cache has one length for all rows, so prompts are padded on the left and filled once. Example, two prompts and a
step; "." is padding, which is masked, and the offset makes `c` the first position:

    column    0   1   2   3
    row 0     a   b   c   d
    row 1     .   .   c   e     offset -2
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gen.devices import to_device
from gen.errors import ArgumentError, ModelError, show_path
from gen.models.base import Rows
from gen.models.checkpoints import read_json
from gen.models.exllama.shared import Checkpoint, ExllamaModel, Turns, errors_of, import_exllama, tensors_in

CACHES = {"fp16": "ExLlamaV2Cache", "q8": "ExLlamaV2Cache_Q8", "q6": "ExLlamaV2Cache_Q6", "q4": "ExLlamaV2Cache_Q4"}
_OTHERS = {"model", "submodules", "archparams"}  # attributes of a module that are not its weights
_OF_ONE_MODULE = ("rank_pattern", "alpha_pattern")  # of adapter_config.json
_MASKED = -3e4  # added to scores: far below every score, and the sum is still a finite float16


def _streams(devices: object) -> Sequence[torch.cuda.Stream]:
    """exllamav2's own streams: one for each GPU that any of its models uses; each forward makes them current."""
    streams: dict[int, torch.cuda.Stream] = sys.modules["exllamav2.device"].global_streams
    return tuple(streams.values())


TURNS = Turns(_streams)  # of all its models: they share streams, and each has one scratch memory


class Exllamav2Model(ExllamaModel):
    """A model of exllamav2 behind `gen.models.base.Model`.

    Attributes:
        exl2_model: the ExLlamaV2 itself.
        params_class: the class of the parameters that exllamav2 gives to each layer's attention.
        loras: the LoRAs that each forward gets; None for none.
        window: the shortest sliding window of a layer; exllamav2 reads longer prompts wrong. None without windows.
    """

    package = "exllamav2"

    def __init__(self, model: Any, checkpoint: Checkpoint, cache_class: Any, context_length: int) -> None:
        self.exl2_model = model
        self.params_class: Any = import_exllama("exllamav2.attn_params").Params
        self.loras: list[Any] | None = None
        self._cache_class = cache_class
        windows = [layer.sliding_window for layer in model.modules if getattr(layer, "sliding_window", 0)]
        self.window: int | None = min(windows, default=None)
        layers = (model.cache_map[index] for index in range(model.config.num_hidden_layers))
        places = (model.modules[0].device(), *layers, model.modules[-1].device())
        super().__init__(checkpoint, model.config.vocab_size, context_length, windows, places)

    def load_lora(self, lora: str | Path | None) -> None:
        """Use a LoRA from now on, instead of the one before; None for none.

        Raises:
            ModelError: see `read_lora`; what was used before stays in use.
        """
        with self.turn():
            loaded = None if lora is None else [read_lora(self.exl2_model, lora)]
            for old in self.loras or ():
                old.unload()
        self.loras = loaded
        self._check_places()

    def turn(self) -> AbstractContextManager[None]:
        """A block in which nobody else launches on exllamav2; see `gen.models.exllama.shared.Turns`."""
        return TURNS(self.placement.logits_device, [one for one in self.placement.devices if one.type == "cuda"])

    def new_rows(self, count: int, length: int) -> "Exllamav2Rows":
        """See `gen.models.base.Model.new_rows`.

        Raises:
            ArgumentError: more rows than there is scratch memory for.
        """
        most = self.exl2_model.config.max_input_len * self.exl2_model.config.max_batch_size
        if count > most:
            raise ArgumentError(
                f"exllamav2 has scratch memory for {most} rows, got {count}; load with max_batch_size=."
            )
        return Exllamav2Rows(self, count, length)

    def new_cache(self, rows: int, length: int) -> Any:
        """A cache of exllamav2 for this many rows of at least this many tokens."""
        block = self.cache_block
        return self._cache_class(self.exl2_model, batch_size=rows, max_seq_len=-(-length // block) * block)

    @cached_property
    def cache_block(self) -> int:
        """How many tokens are quantised together: quantised caches write whole blocks, even beyond their end."""
        if self._cache_class.__name__ == CACHES["fp16"]:
            return 1
        config = self.exl2_model.config
        return 512 // gcd(512, config.num_key_value_heads * config.head_dim)

    def weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Model.weights`."""
        return (one for one in self._tensors() if not _is_memory(one[0]))

    def working_memory(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Model.working_memory`."""
        return (one for one in self._tensors() if _is_memory(one[0]))

    def _tensors(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """Every tensor that the model computes with: a name, the tensor, and the device that its module was given."""
        for module in self.exl2_model.modules:
            for part in (module, *module.submodules):
                device = torch.device(part.device())
                for name, value in vars(part).items():
                    if name not in _OTHERS:
                        for tensor in tensors_in(value, _items):
                            yield f"{part.key}.{name}", tensor, device
        for context in self.exl2_model.device_context:
            if context is not None:
                for name in ("sin", "cos", "scratch"):
                    for tensor in tensors_in(getattr(context, name, None), _items):
                        yield f"the table {name}", tensor, torch.device("cuda", context.device_idx)


def _is_memory(name: str) -> bool:
    """Whether a tensor of this name is scratch memory, or a part of it."""
    return name == "the table scratch" or name.rpartition(".")[2].startswith("temp_")


def _items(value: Any) -> Iterable[Any]:
    """What a list, tuple or dict holds."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


class Exllamav2Rows(Rows):
    """See `gen.models.base.Rows`."""

    def __init__(self, model: Exllamav2Model, count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._cache = model.new_cache(count, length)
        self._columns = 0  # how many are written
        self._masks: dict[torch.device, Tensor] = {}  # on each device of layers, where there is padding
        self._offsets: dict[torch.device, Tensor] = {}

    def prefill(self, rows: slice, prompts: Sequence[Sequence[int]], *_: object, **__: object) -> Tensor:
        """See `gen.models.base.Rows.prefill`; all rows are filled at once.

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


def read_lora(model: Any, folder: str | Path) -> Any:
    """Load a LoRA for an ExLlamaV2; returns the object to give to its forward.

    Raises:
        ModelError: the folder has no LoRA, or one that exllamav2 cannot read or would compute wrongly.
    """
    config = Path(folder, "adapter_config.json")
    settings = read_json(config) if config.is_file() else None
    if isinstance(settings, dict) and (named := [name for name in _OF_ONE_MODULE if settings.get(name)]):
        raise ModelError(
            f"{show_path(config)} has {' and '.join(named)}: ranks or scales of single modules, which exllamav2 would "
            "leave out. Merge the adapter into its model, or load both with gen.load."
        )
    with errors_of(f"exllamav2 cannot load the LoRA {show_path(folder)}"):
        lora = import_exllama("exllamav2").ExLlamaV2Lora.from_directory(model, str(folder))
    for module in model.modules:
        _reorder_(module, lora)
    return lora


@torch.inference_mode()
def _reorder_(module: Any, lora: Any) -> None:
    """Put a LoRA on an MLP with EXL2 weights into the order of these weights.

    EXL2 sorts the rows of each matrix by how much they matter. exllamav2 leaves the rows of down_proj sorted, and sorts
    the columns of gate_proj and up_proj in the same way, but not the matrices of a LoRA.
    """
    down = getattr(module, "down_proj", None)
    if down is None or down.q_handle is None:
        return
    found = down.load_multi(down.key, ["q_invperm"], cpu=True)
    if "q_invperm" not in found:  # GPTQ
        return
    order = torch.argsort(found["q_invperm"])
    for part in (module.gate_proj, module.up_proj):
        columns = part.lora_b_tensors.get(lora) if part is not None else None
        if columns is not None:
            columns.copy_(columns[:, order.to(columns.device)])
    rows = down.lora_a_tensors.get(lora)
    if rows is not None:
        rows.copy_(rows[order.to(rows.device)])
