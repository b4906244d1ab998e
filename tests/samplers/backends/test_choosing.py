"""Every backend, compared with the float64 reference and the others, on difficult logits and parameters."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.devices import native_cuda
from gen.errors import ArgumentError, DeviceError
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler
from gen.samplers.backends import choosing, torch_backend
from gen.samplers.backends.random import row_keys
from gen.samplers.parameters import Parameters
from tests.samplers.float64_reference import Ranked, Reference, hard_logits
from virtual_gpus import no_host_sync, virtual_gpus

BACKENDS: list[Any] = [choosing.ON_CPU, torch_backend]  # the first is torch_backend where the host may read values
USUAL: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}
COMBINATIONS: list[dict[str, Any]] = [
    {name: USUAL[name] for name in names} for n in range(5) for names in combinations(USUAL, n)
]
EDGES: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 1, "top_p": 0.5},
    {"top_k": 10**6, "top_p": 0.9},
    {"top_k": 700, "top_p": 0.99, "temperature": 1.7},
    {"top_p": 1e-6},
    {"top_p": 0.9999999},
    {"top_p": 1, "min_p": 0},
    {"min_p": 1},
    {"min_p": 1e-9, "top_p": 0.999},
    {"temperature": 1e-3, "top_p": 0.9},
    {"temperature": 50.0, "top_p": 0.7, "top_k": 300},
]
VOCABULARIES = [1, 2, 31, 33, 300, 32_000, 151_936]
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def checked(logits: Tensor, parameters: Parameters, expected: Reference) -> list[tuple[Tensor, Tensor]]:
    """What each backend draws; kept set, token and log-probability are the reference's."""
    rows = parameters.for_rows(logits)
    kept = torch_backend.keeps(logits, *rows)
    wrong = (kept != expected.kept) & ~expected.either
    assert not wrong.any(), f"rows {wrong.any(-1).nonzero().flatten().tolist()} of {parameters}"
    dead = ~expected.kept.any(-1)
    sure = ~dead & ~expected.either.any(-1)
    keys = row_keys(torch.arange(len(logits)), 1)[0]
    drawn = []
    for backend in BACKENDS:
        token_ids, logprobs = backend.draw(logits, keys, *rows)
        assert not token_ids[dead].any() and logprobs[dead].isneginf().all()
        assert kept.gather(-1, token_ids)[~dead].all()
        wanted = expected.probabilities.gather(-1, token_ids).squeeze(-1)[sure].log()
        torch.testing.assert_close(logprobs[sure].double(), wanted, atol=3e-5, rtol=1e-5)
        drawn.append((token_ids, logprobs))
    return drawn


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_backends_equal_the_reference_and_each_other(vocab: int, dtype: torch.dtype) -> None:
    """With all parameters; large vocabularies take long, so there each dtype has a fifth or a twelfth of them, and the
    largest has every second kind of row.
    """
    logits = hard_logits(vocab, dtype)
    if vocab == VOCABULARIES[-1]:
        logits = logits[TYPES.index(dtype) % 2 :: 2]
    ranked = Ranked(logits)
    every = {32_000: 5, 151_936: 12}.get(vocab, 1)
    share = slice((TYPES.index(dtype) + 3) % every, None, every)
    for parameters in (COMBINATIONS + EDGES)[share]:
        expected = ranked.cut(**parameters)
        (token_ids, logprobs), (others, other_logprobs) = checked(logits, Parameters(**parameters), expected)
        alike = ~expected.either.any(-1)
        assert torch.equal(token_ids[alike], others[alike]), parameters
        torch.testing.assert_close(logprobs[alike], other_logprobs[alike], atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [33, 1000, 32_000])
def test_each_row_may_have_parameters_of_its_own(vocab: int) -> None:
    logits = hard_logits(vocab, torch.float32)
    rows = torch.arange(len(logits))
    temperature, min_p = (0.3 + 0.1 * rows).tolist(), (0.01 * (rows % 4)).tolist()
    top_k, top_p = (1 + 7 * (rows % 5) + vocab * (rows % 2)).tolist(), (1 - 0.1 * (rows % 7)).double().tolist()
    ranked = Ranked(logits)
    every: dict[str, list[Any]] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for names in [names for n in ((1, 4) if vocab == 32_000 else (1, 2, 4)) for names in combinations(every, n)]:
        values = {name: every[name] for name in names}
        tensors: dict[str, Any] = {
            name: torch.tensor(value, dtype=torch.int64 if name == "top_k" else torch.float64)
            for name, value in values.items()
        }
        if "temperature" in values:
            values["temperature"] = tensors["temperature"].float().double().tolist()
        expected = ranked.cut(**values)
        results = checked(logits, Parameters(**tensors), expected)
        alike = ~expected.either.any(-1)
        assert torch.equal(results[0][0][alike], results[1][0][alike])


@pytest.mark.parametrize("backend", BACKENDS, ids=["reads", "torch_backend"])
@pytest.mark.parametrize("vocab", [1, 33, 1000, 32_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_most_likely_token_is_the_lowest_of_the_largest(backend: Any, vocab: int, dtype: torch.dtype) -> None:
    logits = hard_logits(vocab, dtype)
    token_ids, logprobs = backend.most_likely(logits)
    expected = Ranked(logits.float()).cut()
    alive = expected.kept.any(-1)
    assert torch.equal(token_ids[alive], expected.probabilities.argmax(-1, keepdim=True)[alive])
    assert not token_ids[~alive].any() and logprobs[~alive].isneginf().all()
    torch.testing.assert_close(
        logprobs[alive].double(), expected.probabilities.amax(-1)[alive].log(), atol=3e-6, rtol=1e-6
    )


@pytest.mark.parametrize("backend", BACKENDS, ids=["reads", "torch_backend"])
@pytest.mark.parametrize("vocab", [1, 33, 1000, 5000])
def test_the_likeliest_tokens_are_the_references(backend: Any, vocab: int) -> None:
    logits = hard_logits(vocab, torch.float32)
    n = min(vocab, 9)
    logprobs, token_ids = backend.likeliest(logits, n)
    probabilities = Ranked(logits).cut().probabilities
    wanted = probabilities.topk(n).values.log()
    shown = probabilities.gather(-1, token_ids).log().where(logprobs.isfinite(), -math.inf)
    for values in (logprobs.double(), shown):  # what float64 cannot tell from 0 may be anything below -700
        torch.testing.assert_close(values.clamp(min=-700), wanted.clamp(min=-700), atol=3e-5, rtol=1e-5)
    assert all(len(set(row)) == n for row in token_ids[:6].tolist())


@pytest.mark.parametrize("backend", BACKENDS, ids=["reads", "torch_backend"])
@pytest.mark.parametrize("vocab", [1, 33, 1000, 5000])
def test_the_highest_numbers_are_given_back_as_they_are(backend: Any, vocab: int) -> None:
    numbers = hard_logits(vocab, torch.float32)
    n = min(vocab, 9)
    largest = torch.finfo(torch.float32).max
    finite = numbers.nan_to_num(nan=-math.inf, posinf=largest, neginf=-math.inf)
    values, token_ids = backend.highest(numbers, n)
    assert torch.equal(values, finite.sort(descending=True).values[:, :n])
    assert torch.equal(values, finite.gather(1, token_ids).where(values > -math.inf, -math.inf))


def test_no_parameter_makes_the_host_wait_and_virtual_gpus_give_the_cpus_tokens() -> None:
    logits, keys = hard_logits(300, torch.float32), row_keys(torch.arange(14), 1)[0]
    for parameters in COMBINATIONS:
        per_row = {name: torch.full((14,), value) for name, value in parameters.items()}
        expected = MultinomialSampler(**parameters).step(logits, torch.zeros(14), keys)
        with virtual_gpus(2):
            there = {name: value.to("cuda:1") for name, value in per_row.items()}
            inputs = logits.to("cuda:1"), torch.zeros(14, device="cuda:1"), keys.to("cuda:1")
            assert not native_cuda(inputs[0])
            with no_host_sync():
                results = [MultinomialSampler(**settings).step(*inputs) for settings in (parameters, there)]
            for token_ids, _, _ in results:
                assert torch.equal(token_ids.cpu(), expected[0])


@pytest.mark.parametrize("backend", BACKENDS, ids=["reads", "torch_backend"])
def test_the_users_default_device_and_type_change_nothing(backend: Any) -> None:
    logits, keys = hard_logits(2000, torch.float32), row_keys(torch.arange(14), 1)[0]

    def results() -> list[Tensor]:
        drawn = [backend.draw(logits, keys, *Parameters(**parameters).for_rows(logits)) for parameters in COMBINATIONS]
        return [
            result
            for pair in [*drawn, backend.most_likely(logits), backend.likeliest(logits, 5), backend.highest(logits, 5)]
            for result in pair
        ]

    expected = results()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            changed = results()
    finally:
        torch.set_default_dtype(torch.float32)
    for result, wanted in zip(changed, expected, strict=True):
        torch.testing.assert_close(result, wanted, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"top_k": torch.ones(2)}, "top_k must be a tensor .rows,. of whole numbers, got .2,. of torch.float32"),
        ({"top_p": torch.ones(2, 1)}, "top_p must be a tensor .rows,. of numbers, got .2, 1."),
        ({"temperature": torch.ones(3)}, "temperature must have a value for each of 2 rows, got 3"),
    ],
)
def test_a_tensor_of_the_wrong_kind_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultinomialSampler(**parameters).warp(torch.zeros(2, 5))


def test_a_tensor_on_another_device_is_refused_by_name() -> None:
    sampler = MultinomialSampler(top_p=torch.ones(2, device="meta"))
    with pytest.raises(DeviceError, match="top_p"):
        sampler.step(torch.zeros(2, 5), torch.zeros(2), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("parameters", COMBINATIONS, ids=str)
@pytest.mark.parametrize("vocab", [5, 128, 300])
def test_no_rows_give_no_results(vocab: int, parameters: dict[str, Any]) -> None:
    per_row: dict[str, Any] = {name: torch.full((0,), value) for name, value in parameters.items()}
    samplers: list[Any] = [MultinomialSampler(**parameters), MultinomialSampler(**per_row)]
    for sampler in [*samplers, GreedySampler(), BeamSearchSampler(4)]:
        token_ids, ancestors, weights = sampler(torch.zeros(0, vocab), torch.zeros(0))
        assert token_ids.shape == (0, 1) and ancestors.shape == weights.shape == (0,)


@pytest.mark.parametrize("shape", [(5,), (2, 5, 1), (2, 0), ()], ids=str)
@pytest.mark.parametrize("sampler", [GreedySampler(), MultinomialSampler(), BeamSearchSampler(2)], ids=repr)
def test_what_is_no_logits_is_refused(sampler: Any, shape: tuple[int, ...]) -> None:
    keys = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"logits must be a floating tensor \(rows, vocab\)"):
        sampler.step(torch.zeros(shape), torch.zeros(2), keys)
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ArgumentError, match=rf"logits must be a floating tensor .* of {dtype}"):
            sampler.step(torch.zeros(2, 5, dtype=dtype), torch.zeros(2), keys)


def test_rows_that_are_no_multiple_of_the_beams_are_refused() -> None:
    with pytest.raises(ArgumentError, match="logits must have a multiple of 3 rows, one for each beam, got 4"):
        BeamSearchSampler(3)(torch.zeros(4, 5), torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parameters", [{"top_k": 50}, {"min_p": 0.1}, {"top_p": 0.9}, USUAL], ids=str)
def test_rows_with_fewer_tokens_than_top_k_are_not_worked_on_whole(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], dtype: torch.dtype
) -> None:
    def whole(*_: object, **__: object) -> None:
        raise AssertionError("a row was worked on whole")

    monkeypatch.setattr(torch_backend, "_draw_whole", whole)
    logits = torch.full((4, 20_000), -math.inf, dtype=dtype)
    allowed = [[7], [0, 19_999], [*range(300, 303)], [*range(0, 20_000, 700)]]
    for row, own in enumerate(allowed):
        logits[row, own] = -torch.arange(len(own), dtype=dtype)
    token_ids, logprobs = choosing.ON_CPU.draw(logits, torch.arange(4), *Parameters(**parameters).for_rows(logits))
    assert all(int(one) in row for one, row in zip(token_ids, allowed, strict=True))
    assert logprobs.isfinite().all()
