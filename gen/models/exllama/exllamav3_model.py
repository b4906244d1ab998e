"""A model of exllamav3 as the decode loop sees it: placement, and the pages of its cache that calls borrow."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gen.devices import Placement, describe
from gen.errors import DeviceError
from gen.models.base import NoRoom
from gen.models.exllama import turns
from gen.models.exllama.checkpoint import Checkpoint
from gen.models.exllama.exllamav3_rows import PAGE, Exllamav3Rows
from gen.models.idle_rows import Idle
from gen.models.transformers.snapshot import Snapshot
from gen.samplers import Sampler


class Exllamav3Model:
    """A model of exllamav3 behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        exl3_model, cache: the Model and its Cache.
    """

    def __init__(self, model: Any, cache: Any, checkpoint: Checkpoint, context_length: int) -> None:
        config = model.config
        self.exl3_model, self.cache = model, cache
        self.tokenizer = checkpoint.tokenizer
        self.vocab_size: int = config.vocab_size  # its logits are padded to a multiple of 128
        self.eos_token_ids = checkpoint.eos_token_ids
        self.idle: Idle[object] = Idle()
        self._checkpoint = checkpoint
        self._free = list(range(cache.max_num_tokens // PAGE))
        self._returned: deque[int] = deque()  # given back, but not in `_free` yet
        self._lending = Lock()
        self.context_length = context_length
        windows = [layer.sliding_window for layer in model if getattr(layer, "sliding_window", -1) > 0]
        if checkpoint.window is not None and not windows:  # exllamav3 attends to everything, not to a window
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

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe("exllamav3", self._checkpoint.folder, self.placement)

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`."""
        return self._checkpoint.recommended_sampler(self.vocab_size)

    @property
    def free_pages(self) -> int:
        """How many pages of 256 tokens no call has borrowed."""
        return len(self._free) + len(self._returned)

    def release(self) -> None:
        """Close the model's own engine; the model keeps no rows between calls."""
        self.idle.clear()

    def turn(self) -> AbstractContextManager[None]:
        """A block in which nobody else launches on exllamav3; see `gen.models.exllama.turns.Turns`."""
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
        """Take back pages that a call no longer needs; takes no lock, since finalisers call it."""
        self._returned.extend(pages)

    def check(self) -> Snapshot:
        """See `gen.models.base.Checked.check`."""
        return Snapshot([tensor for _, tensor, _ in self._own_weights()])

    def version(self, checked: Snapshot) -> tuple[int, ...]:
        """See `gen.models.base.Versioned.version`."""
        return checked.versions()

    def weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """All weights and the cache: a name, the tensor, and the device that its module was given."""
        yield from self._own_weights()
        for layer in self.cache.layers.values():
            for tensor in layer.get_tensors():
                yield f"the cache of {layer.attention.key}", tensor, torch.device(layer.attention.device)

    def _own_weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        for module in self.exl3_model:
            if module.device is not None:
                device = torch.device(module.device)
                for name, value in vars(module).items():
                    for tensor in _tensors(value):
                        yield f"{module.key}.{name}", tensor, device


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
