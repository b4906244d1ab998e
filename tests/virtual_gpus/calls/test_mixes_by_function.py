"""Mixes of devices that torch's functions accept or refuse before an operator sees them. Oracle: ATen's source."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from virtual_gpus import DeviceMismatchError, no_host_sync

pytestmark = pytest.mark.usefixtures("gen_virtual_gpus")
DEVICES = ("cpu", "cuda:0", "cuda:1")


def numbers(device: str = "cuda:0", *shape: int) -> Tensor:
    return torch.ones(shape or (3, 3), device=device)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "meshgrid, two GPUs": (
        "same device, got cuda:0, cuda:1",
        lambda: torch.meshgrid(numbers("cuda:0", 2), numbers("cuda:1", 2), indexing="ij"),
    ),
    "meshgrid, CPU": (
        "same device, got cpu, cuda:0",
        lambda: torch.meshgrid([numbers("cpu", 2), numbers("cuda:0", 2)], indexing="ij"),
    ),
    "tensor_split": ("on cpu, but it's on cuda:0", lambda: numbers().tensor_split(torch.tensor([1], device="cuda:0"))),
    "tensor_split of the CPU": (
        "on cpu, but it's on cuda:1",
        lambda: torch.tensor_split(numbers("cpu"), torch.tensor([1], device="cuda:1"), dim=1),
    ),
    "repeat_interleave of the CPU": (
        "two devices, cuda:1 and cpu",
        lambda: numbers("cpu").repeat_interleave(torch.tensor([1, 2, 1], device="cuda:1"), 0),
    ),
    "clamp to another GPU": (
        "two devices, cuda:0 and cuda:1",
        lambda: torch.clamp(numbers(), 0, 1, out=numbers("cuda:1")),
    ),
    "clamp to the CPU": ("two devices, cuda:0 and cpu", lambda: torch.clamp(numbers(), 0, 1, out=numbers("cpu"))),
    "clamp from the CPU": ("two devices, cuda:0 and cpu", lambda: torch.clamp(numbers("cpu"), 0, 1, out=numbers())),
    "linalg.norm": (
        "result on cuda:1 and input on cuda:0",
        lambda: torch.linalg.norm(numbers(), out=numbers("cuda:1")),
    ),
    "linalg.cond": ("result on cpu and input on cuda:0", lambda: torch.linalg.cond(numbers(), out=numbers("cpu"))),
    "cosine_similarity of a CPU number": (  # Distance.cpp expands it
        "two devices, cuda:0 and cpu",
        lambda: torch.nn.functional.cosine_similarity(numbers(), torch.ones((), device="cpu")),
    ),
    "a function of the user's": (
        "two devices, cuda:0 and cpu",
        lambda: torch.nn.functional.triplet_margin_with_distance_loss(
            *[numbers()] * 3, distance_function=lambda a, b: ((a - b) * numbers("cpu", 3)).sum(-1)
        ),
    ),
}
INTO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tensordot": lambda a, out: torch.tensordot(a, a, 1, out=out),
    "inner": lambda a, out: torch.inner(a, a, out=out),
    "quantile": lambda a, out: torch.quantile(a, 0.5, out=out),
    "nanquantile": lambda a, out: torch.nanquantile(a, 0.5, out=out),
    "special.ndtr": lambda a, out: torch.special.ndtr(a, out=out),
    "nuclear norm": lambda a, out: torch.norm(a, "nuc", out=out),
    "diff of no order": lambda a, out: torch.diff(a, 0, out=out),
}


@pytest.mark.parametrize("case", INTO)
def test_compositions_refuse_results_on_another_device(case: str) -> None:
    for place in ("cuda:1", "cpu"):
        with pytest.raises(DeviceMismatchError, match=f"result on {place} and input on cuda:0"):
            INTO[case](numbers(), numbers(place))


@pytest.mark.parametrize("case", REFUSED)
def test_a_mix_is_refused(case: str) -> None:
    reason, call = REFUSED[case]
    with pytest.raises(DeviceMismatchError, match=reason):
        call()


def test_what_is_not_mixed_is_taken() -> None:
    rows, columns = torch.meshgrid(numbers("cuda:1", 2), numbers("cuda:1", 3), indexing="ij")
    assert rows.device == columns.device == torch.device("cuda:1")
    assert [part.shape[0] for part in numbers().tensor_split(torch.tensor([1]))] == [1, 2]
    found = torch.linalg.norm(numbers(), out=numbers("cuda:0", 1).squeeze())
    assert found.device == torch.device("cuda:0") and found.item() == pytest.approx(3)


@pytest.mark.parametrize("between", [torch.linspace, torch.logspace])
def test_values_between_bounds_on_a_gpu_are_where_the_call_says(between: Callable[..., Tensor]) -> None:
    """The host reads both bounds. Source: aten/src/ATen/native/TensorFactories.cpp and RangeFactories.cpp."""
    start, end = torch.zeros((), device="cuda:0"), torch.ones((), device="cuda:0")
    for given, expected in (({}, "cpu"), ({"device": "cpu"}, "cpu"), ({"device": "cuda:1"}, "cuda:1")):
        with no_host_sync(count=True) as report:
            made = between(start, end, 3, **given)
        assert (made.device, report.count) == (torch.device(expected), 2)
        assert made.tolist() == between(0, 1, 3).tolist()
    out = torch.empty(3, device="cuda:1")
    assert between(start, 1, 3, out=out) is out
    assert out.tolist() == between(0, 1, 3).tolist()


@pytest.mark.parametrize("first", DEVICES)
@pytest.mark.parametrize("second", DEVICES)
def test_padded_sequences_are_where_the_first_one_is(first: str, second: str) -> None:
    with no_host_sync(count=True) as report:
        made: Tensor = pad_sequence([numbers(first, 2), numbers(second, 3)], True, 5.0)
    assert made.device == torch.device(first)
    assert report.count == ((first == "cpu") != (second == "cpu"))  # a copy between GPUs does not wait
    assert made.tolist() == [[1, 1, 5], [1, 1, 1]]


def test_python_functions_of_elements_are_the_cpus() -> None:
    one: Any = numbers()
    calls: dict[str, Callable[[], Any]] = {"apply_": lambda: one.apply_(abs), "map_": lambda: one.map_(one, max)}
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name} is only implemented on CPU tensors"):
            call()
