"""How many operations a step takes, that it can be recorded, and that tables of parameters work like numbers."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gen.runtime.one_call import is_one_call
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler
from gen.samplers.backends import choosing, torch_backend
from gen.samplers.backends.random import row_keys
from gen.samplers.parameters import Parameters
from tests.samplers.float64_reference import hard_logits

NUMBERS: dict[str, Any] = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05}
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 2**62, "top_p": 1.0, "min_p": 0.0}
DTYPES = {"temperature": torch.float32, "top_k": torch.int64, "top_p": torch.float64, "min_p": torch.float64}
SETS = [names for n in range(5) for names in combinations(NUMBERS, n)]
each_set = pytest.mark.parametrize("names", SETS, ids=lambda names: "+".join(names) or "none")
each_backend = pytest.mark.parametrize("backend", [choosing.ON_CPU, torch_backend], ids=["reads", "torch_backend"])


def tables(names: tuple[str, ...], rows: int, device: str = "cpu") -> dict[str, Any]:
    return {name: torch.full((rows,), NUMBERS[name], dtype=DTYPES[name], device=device) for name in names}


class Calls(TorchFunctionMode):
    """Counts the calls that make, change or read a tensor; those that ask for its shape or type are free."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ not in ("__get__", "dim", "numel", "__len__", "is_floating_point", "stride"):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that would run on a device: views, empty memory and conversions to the same dtype are free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op._schema.name.removeprefix("aten::")
        view = op.is_view or name in ("unflatten", "view") or result is args[0]
        if (not view and not name.startswith("empty")) or name.endswith("_"):
            self.names.append(name)
        return result


class Recording(TorchFunctionMode):
    """Records torch calls so that they can be made again, and refuses calls that read on the host."""

    READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.__name__ not in self.READS, f"{func.__name__} reads on the host"
        result = func(*args, **(kwargs or {}))
        self.calls.append(func)
        return result


def demo_logits(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    ranks = torch.rand(rows, 2000, generator=generator).argsort(-1) + 1
    return 12 - 2.5 * ranks.float().log() + 0.1 * torch.randn(rows, 2000, generator=generator)


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_greedy_takes_few_calls_on_small_logits(rows: int) -> None:
    logits = demo_logits(rows)
    with torch.inference_mode(), Calls() as calls:
        torch_backend.most_likely(logits, reads=True)
    assert len(calls.names) <= 20, calls.names


@each_set
@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("per_row", [False, True], ids=["numbers", "tables"])
def test_a_draw_takes_few_calls_on_small_logits(rows: int, names: tuple[str, ...], per_row: bool) -> None:
    logits, keys = demo_logits(rows), row_keys(torch.arange(rows), 1)[0]
    given = tables(names, rows) if per_row else {name: NUMBERS[name] for name in names}
    parameters = Parameters(**given).for_rows(logits)
    torch_backend.draw(logits, keys, *parameters, reads=True)  # makes the tensors that are cached
    with torch.inference_mode(), Calls() as calls:
        torch_backend.draw(logits, keys, *parameters, reads=True)
    assert len(calls.names) <= (115 if {*names} - {"temperature"} else 50), calls.names


@each_set
@pytest.mark.parametrize("per_row", [False, True], ids=["numbers", "tables"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_torch_backend_takes_at_most_60_device_operations_and_reads_nothing_on_the_host(
    names: tuple[str, ...], per_row: bool, dtype: torch.dtype
) -> None:
    """Meta tensors have no data: any call that reads a value, or whose shape depends on one, raises."""
    logits = torch.empty((8, 131_072), dtype=dtype, device="meta")
    keys = torch.empty(8, dtype=torch.int64, device="meta")
    given = tables(names, 8, "meta") if per_row else {name: NUMBERS[name] for name in names}
    table = Parameters(**given).for_rows(logits)
    with torch.inference_mode(), Operations() as operations:
        token_ids, logprobs = torch_backend.draw(logits, keys, *table)
    assert len(operations.names) <= 60, operations.names
    assert token_ids.shape == (8, 1) and logprobs.shape == (8,)
    torch_backend.most_likely(logits)


@each_backend
@pytest.mark.parametrize(("rows", "vocab"), [(16, 1000), (16, 33), (32, 2000), (48, 5000), (16, 33_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neutral_values_in_tables_give_what_a_sampler_without_them_gives(
    backend: Any, rows: int, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has some parameters, and the others neutral: equal bit for bit, in one batch with other kinds."""
    monkeypatch.setattr(choosing, "_backend", lambda logits: backend)
    logits = hard_logits(vocab, dtype).repeat(4, 1)[:rows]
    keys = row_keys(torch.arange(rows), 1)[0]
    start = torch.zeros(rows)
    mixed: dict[str, Any] = {
        name: torch.tensor(
            [NUMBERS[name] if name in SETS[row % 16] else NEUTRAL[name] for row in range(rows)], dtype=DTYPES[name]
        )
        for name in NUMBERS
    }
    cold = torch.arange(rows) % 5 == 4
    mixed["temperature"][cold] = 0
    token_ids, _, weights = MultinomialSampler(**mixed).step(logits, start, keys)
    for number, names in enumerate(SETS):
        here = ((torch.arange(rows) % 16 == number) & ~cold).nonzero().squeeze(1)
        if not len(here):
            continue
        sampler = MultinomialSampler(**{name: NUMBERS[name] for name in names})
        alone = sampler.step(logits[here], start[here], keys[here])
        assert torch.equal(token_ids[here], alone[0]), names
        assert torch.equal(weights[here], alone[2]), names
    greedy = GreedySampler().step(logits, start, keys)
    assert torch.equal(token_ids[cold], greedy[0][cold]) and torch.equal(weights[cold], greedy[2][cold])


@each_backend
def test_a_row_is_the_same_alone(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_backend", lambda logits: backend)
    logits = hard_logits(12_800, torch.float32)
    keys, start = row_keys(torch.arange(14), 1)[0], torch.zeros(14)
    for names in SETS:
        sampler = MultinomialSampler(**{name: NUMBERS[name] for name in names})
        together = sampler.step(logits, start, keys)
        for row in range(14):
            one = slice(row, row + 1)
            alone = sampler.step(logits[one], start[one], keys[one])
            assert torch.equal(alone[0], together[0][one]) and torch.equal(alone[2], together[2][one]), (names, row)


def steps(rows: int) -> list[Callable[[Tensor], Any]]:
    keys, weights = row_keys(torch.arange(rows), 1)[0], torch.full((rows,), -1.0)
    mixed = tables(tuple(NUMBERS), rows)
    mixed["temperature"][::2] = 0
    samplers: list[Any] = [GreedySampler(), MultinomialSampler(**mixed), MultinomialSampler(temperature=0)]
    for names in SETS:
        samplers += [MultinomialSampler(**{name: NUMBERS[name] for name in names})]
        samplers += [MultinomialSampler(**tables(names, rows))]
    beams = BeamSearchSampler(2)
    found: list[Callable[[Tensor], Any]] = [
        lambda logits, sampler=sampler: sampler.step(logits, weights, keys)  # type: ignore[misc]
        for sampler in samplers
    ]
    return [*found, lambda logits: beams.candidates(logits, weights, 6)]


@pytest.mark.parametrize(("rows", "vocab"), [(8, 2000), (4, 20_000)])
def test_a_recording_sees_every_step_on_the_cpu_and_no_read_on_the_host(rows: int, vocab: int) -> None:
    logits = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))
    for step in steps(rows):
        step(logits)  # makes the tables that are kept
        with torch.inference_mode(), Recording() as first:
            recorded = step(logits)
        with torch.inference_mode(), Recording() as second:
            step(logits)
        assert first.calls == second.calls
        assert sum(map(is_one_call, first.calls)) == 1
        for one, other in zip(recorded, step(logits), strict=True):
            assert torch.equal(one, other)


@each_set
@pytest.mark.parametrize("wanted", [(), (0, 3), (0, 1, 2, 3)], ids=["none", "some", "all"])
def test_the_rows_that_are_wanted_get_what_they_get_among_all(names: tuple[str, ...], wanted: tuple[int, ...]) -> None:
    logits, keys = demo_logits(4), row_keys(torch.arange(4), 1)[0]
    parameters = Parameters(**tables(names, 4)).for_rows(logits)
    rows = torch.tensor([row in wanted for row in range(4)])
    whole = choosing.draw(logits, keys, parameters)
    with torch.inference_mode(), Calls() as calls:
        some = choosing.draw(logits, keys, parameters, rows)
    for mine, all_of_them in zip(some, whole, strict=True):
        assert torch.equal(mine[rows], all_of_them[rows])
    assert len(calls.names) < 12 or wanted, calls.names
