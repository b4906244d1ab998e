"""exllamav3's own engine: EXL3 and FP16 checkpoints over one paged cache, whose pages calls borrow.

`gen.load` runs EXL3 checkpoints through transformers; this runs them on exllamav3's own kernels throughout.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.devices import Placement, resolve_device
from gen.errors import ArgumentError, DeviceError, ModelError, check_number, show, show_path
from gen.isolation import isolated
from gen.models.base import NoRoom
from gen.models.exllama import turns
from gen.models.exllama.exllamav3_rows import PAGE, Exllamav3Rows
from gen.models.exllama.folder import Checkpoint, read_checkpoint
from gen.models.exllama.importing import import_exllama
from gen.models.idle import Idle
from gen.samplers import Sampler


@isolated
def from_exllamav3(
    path: str | Path,
    *,
    device: str | int | torch.device | None = None,
    max_num_tokens: int = 8192,
    cache_bits: int | None = None,
    use_per_device: Sequence[float] | None = None,
) -> "Exllamav3Model":
    """Load a checkpoint with exllamav3's own engine: EXL3, or plain weights in 16 bits.

    Needs `pip install 'gen-torch[exllamav3]'`, CUDA and nvcc: the first import on a machine compiles it.

    Args:
        path: a folder with config.json, a tokenizer and weights in safetensors format.
        device: where the whole model goes, embedding and cache with it; None is the current CUDA device.
        max_num_tokens: how many tokens the cache has room for, over all calls that run at one time; in pages of 256.
            A row takes whole pages.
        cache_bits: of keys and values, 2 to 8; None is float16.
        use_per_device: instead of a device, gigabytes that may be used on each GPU, in order; 0 leaves a GPU out.
    Raises:
        ArgumentError: arguments at odds with each other, or out of range.
        DeviceError: the device does not exist or is the CPU, or exllamav3 put a weight elsewhere than it was to be.
        ModelError: exllamav3 cannot be imported, or does not know the checkpoint; its files are not whole; it has
            layers with a recurrent state, which no page holds.
    Host sync: several; this is at load. The current device, streams and number of threads are as before.
    """
    if device is not None and use_per_device is not None:
        raise ArgumentError("give device for one GPU or use_per_device for several, not both.")
    pages = -(-read_whole("max_num_tokens", max_num_tokens, minimum=1) // PAGE)
    if cache_bits is not None:
        cache_bits = read_whole("cache_bits", cache_bits, minimum=2, maximum=8)
    if use_per_device is None:
        target = resolve_device(device)
        if target.type != "cuda":
            raise DeviceError(f"exllamav3 runs on CUDA devices alone, not on {target}; gen.load runs on the CPU.")
        used = [target]
        place: dict[str, Any] = {"device": target}
    else:
        sizes = _read_sizes(use_per_device)
        used = [torch.device("cuda", index) for index, size in enumerate(sizes) if size > 0]
        place = {"use_per_device": sizes}
    checkpoint = read_checkpoint(path)
    exl3 = import_exllama("exllamav3")
    with turns.EXLLAMAV3(used[-1], used):
        model, cache = _load(exl3, checkpoint.folder, pages * PAGE, cache_bits, place)
        for one in used:
            torch.cuda.synchronize(one)
    return Exllamav3Model(model, cache, checkpoint)


def _read_sizes(use_per_device: Sequence[float]) -> list[float]:
    if not isinstance(use_per_device, Sequence) or isinstance(use_per_device, str) or not len(use_per_device):
        raise ArgumentError(f"use_per_device must be a list of gigabytes for each GPU, got {show(use_per_device)}")
    for size in use_per_device:
        check_number("use_per_device", size, minimum=0)
    if not any(use_per_device):
        raise ArgumentError(f"use_per_device must have room on some GPU, got {show(use_per_device)}")
    resolve_device(len(use_per_device) - 1)
    return [float(size) for size in use_per_device]


def _load(exl3: Any, folder: Path, tokens: int, cache_bits: int | None, place: dict[str, Any]) -> tuple[Any, Any]:
    """The model and its cache, which is made with the weights, layer by layer."""
    kind: dict[str, Any] = {}
    if cache_bits is not None:
        kind = {"layer_type": exl3.CacheLayer_quant, "k_bits": cache_bits, "v_bits": cache_bits}
    try:
        with redirect_stdout(sys.stderr):
            config = exl3.Config.from_directory(str(folder))
            model = exl3.Model.from_config(config)
            if model.get_recurrent_layers():
                raise ModelError(
                    f"{show_path(folder)} has layers with a recurrent state or a window of their own, which "
                    "gen.from_exllamav3 keeps no pages for; gen.load runs an EXL3 checkpoint through transformers."
                )
            model.modules[0].caps["prefer_cpu"] = False  # an embedding on the CPU would have the host wait for ids
            cache = exl3.Cache(model, max_num_tokens=tokens, **kind)
            model.load(**place, max_chunk_size=min(tokens, 2048))
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # it asserts, and fails with errors of every kind
        told = f"{type(error).__name__}: {show(str(error), 200)}"
        raise ModelError(f"exllamav3 cannot load {show_path(folder)}: {told}") from error
    return model, cache


class Exllamav3Model:
    """A model of exllamav3 behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        exl3_model, cache: the Model and its Cache.
    """

    def __init__(self, model: Any, cache: Any, checkpoint: Checkpoint) -> None:
        config = model.config
        self.exl3_model, self.cache = model, cache
        self.tokenizer = checkpoint.tokenizer
        self.vocab_size: int = config.vocab_size  # its logits are padded to a multiple of 128
        self.eos_token_ids = checkpoint.eos_token_ids
        self.idle: Idle[object] = Idle()
        self._checkpoint = checkpoint
        self._free = list(range(cache.max_num_tokens // PAGE))
        self._returned: deque[int] = deque()  # and not yet sorted in
        self._lending = Lock()
        self.context_length: int = config.max_position_embeddings
        windows = [layer.sliding_window for layer in model if getattr(layer, "sliding_window", -1) > 0]
        if checkpoint.window is not None and not windows:  # it does not know of it, and looks at everything
            self.context_length = min(self.context_length, checkpoint.window)
        layers = [torch.device(layer.device) for layer in model.get_cache_layers()]
        self.placement = Placement(
            input_device=torch.device(model.modules[0].device),
            logits_device=torch.device(model.output_device),
            layer_devices=tuple(layers),
            dtype=torch.float16,
        )
        for name, tensor, device in self.weights():
            if tensor.device != device:
                raise DeviceError(f"exllamav3 was to put {name} on {device}, it is on {tensor.device}.")

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.recommended.recommended_sampler`."""
        return self._checkpoint.recommended_sampler(self.vocab_size)

    @property
    def free_pages(self) -> int:
        """How many pages of 256 tokens no call has borrowed."""
        return len(self._free) + len(self._returned)

    def release(self) -> None:
        """Close the engine of the model's own; between calls it keeps no rows."""
        self.idle.clear()

    def turn(self) -> AbstractContextManager[None]:
        """Nobody else launches on exllamav3 meanwhile; see `gen.models.exllama.turns.Turns`."""
        return turns.EXLLAMAV3(self.placement.logits_device, self.placement.devices)

    def new_rows(self, count: int, length: int) -> Exllamav3Rows:
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
        """Pages that a call needs no more; takes no lock, since finalisers call it."""
        self._returned.extend(pages)

    def weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """All weights and the cache: a name, the tensor, and the device that its module was given."""
        for module in self.exl3_model:
            if module.device is not None:
                device = torch.device(module.device)
                for name, value in vars(module).items():
                    for tensor in _tensors(value):
                        yield f"{module.key}.{name}", tensor, device
        for layer in self.cache.layers.values():
            for tensor in layer.get_tensors():
                yield f"the cache of {layer.attention.key}", tensor, torch.device(layer.attention.device)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in an attribute of one of exllamav3's modules: itself, or those of its weights or rotations."""
    if isinstance(value, Tensor):
        if not value.is_meta:
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif type(value).__module__.startswith(("exllamav3.modules.quant", "exllamav3.util.rope")):
        for held in vars(value).values():
            if isinstance(held, Tensor):
                yield held
