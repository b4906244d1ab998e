"""What exllamav2 and exllamav3 have in common: their import, what a checkpoint's folder has beside its weights, devices
and gigabytes, and turns.

Both libraries keep buffers on the device that every forward writes: two threads that launch on streams of their own
would overwrite each other's data, since streams do not wait for each other. So threads take turns on the host, and on
each device all turns use one stream. It waits for what the caller has launched before, and the caller's stream for it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.devices import Placement, describe, resolve_device
from gen.errors import ArgumentError, DeviceError, GenError, ModelError, check_number, show, show_path
from gen.models.base import Model
from gen.models.checkpoints import check_safetensors, find_path, load_tokenizer, read_config
from gen.models.generation_config import read_eos, recommended_sampler
from gen.models.idle_rows import Idle
from gen.models.peer_copies import check_peer_copies
from gen.runtime.forking import new_lock
from gen.runtime.streams import lend
from gen.samplers import Sampler
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import GenerationConfig

Streams = Callable[[Iterable[torch.device]], Iterable[torch.cuda.Stream]]
_ALLOCATOR = "EXL3_EXPANDABLE_SEGMENTS"  # "0" keeps exllamav3 from changing the settings of torch's allocator
_importing = new_lock(RLock)  # without it, another thread could keep the changed settings as the ones from before


def import_exllama(name: str) -> Any:
    """Import exllamav2 or exllamav3, or a module of it; its first import on a machine compiles for minutes.

    A plain import would change torch's number of threads and the settings of its allocator, and print to stdout; here
    the settings stay as they are, and the output goes to stderr.

    Raises:
        ModelError: it is not there, or cannot be compiled.
    """
    package = name.partition(".")[0]
    with _importing:
        threads, chosen = torch.get_num_threads(), _ALLOCATOR in os.environ
        os.environ.setdefault(_ALLOCATOR, "0")
        try:
            with redirect_stdout(sys.stderr):
                return import_module(name)
        except Exception as error:  # not installed; no CUDA_HOME, compiler or ninja; compiled for another torch
            raise ModelError(
                f"{package} cannot be used ({type(error).__name__}: {show(str(error), 300)}). Install it with "
                f"pip install 'gen-torch[{package}]'; it compiles itself when it is first imported, which needs torch "
                "for CUDA, nvcc of the same version and CUDA_HOME, the folder where nvcc's bin is."
            ) from error
        finally:
            torch.set_num_threads(threads)
            if not chosen:
                del os.environ[_ALLOCATOR]


@contextmanager
def errors_of(doing: str) -> Iterator[None]:
    """A block in which one of the libraries works: what it prints goes to stderr, and its errors become ModelErrors.

    Args:
        doing: the beginning of their messages, as "exllamav2 cannot load NAME".
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (GenError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # they assert, look up keys that are not there, and fail with errors of every kind
        raise ModelError(f"{doing}: {type(error).__name__}: {show(str(error), 200)}") from error


def cuda_device(package: str, device: str | int | torch.device | None) -> torch.device:
    """The CUDA device that a user means.

    Raises:
        DeviceError: it does not exist, or is no CUDA device.
    """
    found = resolve_device(device)
    if found.type != "cuda":
        raise DeviceError(f"{package} runs on CUDA devices alone, not on {found}; gen.load runs on the CPU.")
    return found


def read_gigabytes(name: str, given: Sequence[float]) -> list[float]:
    """Gigabytes for each GPU, in order, up to the last one that is used."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not len(given):
        raise ArgumentError(f"{name} must be a list of gigabytes for each GPU, got {show(given)}")
    for size in given:
        check_number(name, size, minimum=0)
    sizes = [float(size) for size in given]
    if not any(sizes):
        raise ArgumentError(f"{name} must have room on some GPU, got {show(given)}")
    resolve_device(len(sizes) - 1)
    while not sizes[-1]:
        sizes.pop()
    return sizes


def used_devices(sizes: Sequence[float]) -> list[torch.device]:
    """The GPUs that have gigabytes."""
    return [torch.device("cuda", index) for index, size in enumerate(sizes) if size > 0]


def tensors_in(value: Any, inside: Callable[[Any], Iterable[Any]]) -> Iterator[Tensor]:
    """The tensors in an attribute of one of the libraries' modules, without placeholders.

    Args:
        inside: what an object holds that may have tensors; nothing for an object that is not to be looked into.
    """
    if isinstance(value, Tensor):
        if not value.is_meta:
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    else:
        for held in inside(value):
            yield from tensors_in(held, inside)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a folder has beside its weights.

    Attributes:
        folder: the directory.
        config: of the text part, as config.json has it.
        generation: the generation config.
        tokenizer: the checkpoint's own.
        window: how many tokens layers with a sliding window attend to; None if all layers attend to everything.
    """

    folder: Path
    config: dict[str, Any]
    generation: "GenerationConfig"
    tokenizer: Tokenizer
    window: int | None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text, of the generation config, else of the config."""
        ids = self.generation.eos_token_id
        return read_eos(self.config.get("eos_token_id") if ids is None else ids)

    def recommended_sampler(self, vocab_size: int) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`."""
        known = min(vocab_size, self.tokenizer.vocab_size)
        return recommended_sampler(self.generation, known, self.eos_token_ids)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a folder, and check that its files are whole.

    Raises:
        ArgumentError: something else than a path.
        ModelError: it is no folder, its files are not whole, or its tokenizer has ids that the model does not know.
    """
    from transformers import GenerationConfig

    if not isinstance(path, str | Path) or not str(path):
        raise ArgumentError(f"give the folder of a checkpoint, got {show(path)}")
    folder = find_path(path)
    if not folder.is_dir():
        raise ModelError(f"no directory {show_path(folder)}; give the folder of a checkpoint in Hugging Face format.")
    whole = read_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        check_safetensors(file)
    if not files:
        raise ModelError(f"{show_path(folder)} has no weights: expected files in safetensors format.")
    config = whole | (whole.get("text_config") or {})
    try:
        has_own = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(folder) if has_own else GenerationConfig()
    except Exception as error:  # no JSON, or settings of types that it does not take
        raise ModelError(f"{show_path(folder)}/generation_config.json cannot be read: {error}") from error
    tokenizer = Tokenizer(load_tokenizer(folder))
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"the tokenizer of {show_path(folder)} has ids up to {tokenizer.vocab_size - 1}, its model knows "
            f"{vocab_size}: give the model's own tokenizer."
        )
    return Checkpoint(folder=folder, config=config, generation=generation, tokenizer=tokenizer, window=_window(config))


def _window(config: dict[str, Any]) -> int | None:
    """How far layers of a sliding window look back, as transformers reads it."""
    kinds = config.get("layer_types")
    by_default = not str(config.get("model_type", "")).startswith("qwen")
    if not config.get("use_sliding_window", by_default) or (kinds and "sliding_attention" not in kinds):
        return None
    return config.get("sliding_window") or None


class ExllamaModel(Model):
    """What models of both libraries have; `gen.models.base.Model` says what its attributes are.

    Args:
        vocab_size: their logits are padded to more numbers.
        windows: those of layers that the library knows; without any, it attends to everything.
        places: the devices of the embedding, of each layer, and of the logits.
    """

    package: str

    def __init__(
        self,
        checkpoint: "Checkpoint",
        vocab_size: int,
        context_length: int,
        windows: Sequence[int],
        places: Iterable[Any],
    ) -> None:
        self.tokenizer, self.eos_token_ids = checkpoint.tokenizer, checkpoint.eos_token_ids
        self.vocab_size, self.context_length = vocab_size, context_length
        self.idle: Idle[object] = Idle()
        self._checkpoint = checkpoint
        if checkpoint.window is not None and not windows:
            self.context_length = min(context_length, checkpoint.window)
        first, *layers, last = map(torch.device, places)
        self.placement = Placement(
            input_device=first, logits_device=last, layer_devices=tuple(layers), dtype=torch.float16
        )
        self._check_places()
        check_peer_copies(self.placement.devices)

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe(self.package, self._checkpoint.folder, self.placement)

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`."""
        return self._checkpoint.recommended_sampler(self.vocab_size)

    def _check_places(self) -> None:
        """Raise a DeviceError unless every weight is where it is used."""
        for name, tensor, device in chain(self.weights() or (), self.working_memory()):
            if tensor.device != device:
                raise DeviceError(f"{self.package} was to put {name} on {device}, it is on {tensor.device}.")


class Turns:
    """Turns of a library.

    Args:
        streams: gives the streams that the library runs on, one for each device, at least for the given devices;
            called in each turn.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = RLock()

    @contextmanager
    def __call__(self, home: torch.device, devices: Iterable[torch.device]) -> Iterator[None]:
        """A turn; afterwards the current device and the current streams are the caller's again, whatever happened.

        Args:
            home: the device that is current in the turn.
            devices: all CUDA devices that are used in it.
        Host sync: none; it waits for other threads' turns.
        """
        with self._lock:
            current = torch.cuda.current_device()
            devices = tuple(devices)
            own = tuple(self._streams(devices))
            used = dict.fromkeys((*devices, *(stream.device for stream in own)))
            callers = {device: torch.cuda.current_stream(device) for device in used}
            try:
                for stream in own:
                    stream.wait_stream(callers[stream.device])
                    torch.cuda.set_stream(stream)
                torch.cuda.set_device(home)
                yield
            finally:
                for stream in self._streams(devices):
                    if stream.device in callers:
                        callers[stream.device].wait_stream(stream)
                for stream in callers.values():
                    torch.cuda.set_stream(stream)
                torch.cuda.set_device(current)


def own_streams() -> Streams:
    """A stream for each device, made when it is first asked for and kept."""
    made: dict[torch.device, torch.cuda.Stream] = {}

    def streams(devices: Iterable[torch.device]) -> Iterable[torch.cuda.Stream]:
        for device in devices:
            if device not in made:
                made[device] = lend(streams, device)
        return [made[device] for device in devices]

    return streams


EXLLAMAV3 = Turns(own_streams())  # of all models that run on exllamav3's kernels: they share buffers on a device
