"""Random generators of virtual GPUs: CPU generators that report a virtual GPU as their device."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from virtual_gpus import DeviceMismatchError
from virtual_gpus.call_sites import call_site, describe
from virtual_gpus.machine import CPU, DEVICES, active_machine, gpu_index, machine

_TorchGenerator = torch.Generator
_virtual: "weakref.WeakValueDictionary[int, VirtualGenerator]" = weakref.WeakValueDictionary()


class _AnyGenerator(type(_TorchGenerator)):  # type: ignore[misc]
    """Makes every torch generator an instance of the class that stands for torch.Generator."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchGenerator)


class VirtualGenerator(_TorchGenerator, metaclass=_AnyGenerator):
    """torch.Generator, which also takes virtual GPUs.

    Args:
        device: "cpu", or a GPU of the open block.
    """

    _gpu: int

    def __new__(cls, device: Any = "cpu") -> "VirtualGenerator":
        index = _gpu_of(device)
        return super().__new__(cls, device if index is None else "cpu")  # type: ignore[call-arg]

    def __init__(self, device: Any = "cpu") -> None:
        index = _gpu_of(device)
        self._gpu = CPU if index is None else index
        if index is not None:
            _virtual[identity(self)] = self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu") if self._gpu == CPU else DEVICES[self._gpu]

    def __reduce__(self) -> Any:
        return VirtualGenerator, (self.device,), self.get_state()

    __setstate__ = _TorchGenerator.set_state  # type: ignore[assignment]
    clone_state = copy.copy


def _gpu_of(device: Any) -> int | None:
    """The virtual GPU that a device names; None after the block, for code that was imported in the block."""
    active = active_machine()
    return None if active is None else active.index(device)


def refuse_generator(expected: str, found: str) -> NoReturn:
    """Raise as torch does for a generator of another kind of device than the one that draws."""
    raise DeviceMismatchError(
        f"Expected a '{expected}' device type for generator but found '{found}': make it with "
        f"torch.Generator(device=...) for the device of the tensor, at {describe(call_site())}."
    )


def is_virtual_generator(generator: torch.Generator) -> bool:
    """Whether a generator belongs to a virtual GPU; torch may pass the same one on as another Python object."""
    return identity(generator) in _virtual


def identity(generator: Any) -> int:
    """A number that all Python objects of a generator share."""
    address: int = generator._cdata
    return address


@contextmanager
def drawing_from(gpu: int, takes_generator: bool) -> Iterator[dict[str, torch.Generator]]:
    """In the block, random numbers come from a GPU's own generator.

    Yields:
        The arguments to add: the generator if the operator takes one. If it does not, the CPU's own generator has the
        GPU's state during the block.
    """
    active = active_machine()
    if active is None or gpu >= len(active.generators):
        yield {}
        return
    if gpu in active.stuck:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
    own = active.generators[gpu]
    if takes_generator:
        yield {"generator": own}
        return
    default = torch.default_generator
    saved = default.get_state()
    default.set_state(own.get_state())
    try:
        yield {}
    finally:
        own.set_state(default.get_state())
        default.set_state(saved)


def manual_seed_all(seed: int) -> None:
    for generator in machine().generators:
        generator.manual_seed(seed)


def get_rng_state(device: Any = None) -> Tensor:
    return machine().generators[gpu_index(device)].get_state()


def set_rng_state(new_state: Tensor, device: Any = None) -> None:
    machine().generators[gpu_index(device)].set_state(new_state)


def set_rng_state_all(new_states: list[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "manual_seed": lambda seed: machine().generators[machine().current].manual_seed(seed),
    "manual_seed_all": manual_seed_all,
    "seed": lambda: machine().generators[machine().current].seed(),
    "seed_all": lambda: [generator.seed() for generator in machine().generators],
    "initial_seed": lambda: machine().generators[machine().current].initial_seed(),
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "get_rng_state_all": lambda: [get_rng_state(index) for index in range(machine().gpus)],
    "set_rng_state_all": set_rng_state_all,
}
