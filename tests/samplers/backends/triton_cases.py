"""The Triton backend, compared with the torch backend and the reference; `test_triton_backend` runs these tests.

With TRITON_INTERPRET=1 the kernels run on the CPU, else on cuda:0.
"""

import math
import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gen.samplers.backends import torch_backend, triton_backend, triton_cuts, triton_kernels
from gen.samplers.backends.random import row_keys
from gen.samplers.parameters import Parameters
from tests.launches import launches
from tests.samplers.float64_reference import Ranked, extreme_logits, hard_logits
from tests.triton_interpreter import swap_once

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda:0"
if DEVICE == "cpu":
    swap_once()
KINDS = [1, 3, 8, 10]  # of the rows of hard_logits: the interpreter is slow
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.83},
    {"min_p": 0.05},
    {"temperature": 1.3, "top_k": 17, "top_p": 0.6, "min_p": 0.01},
]


def agree(name: str, *given: Any) -> torch.Tensor:
    """Check that both backends give the same; returns the tokens."""
    (token_ids, logprobs), (others, wanted) = (
        getattr(backend, name)(*given) for backend in (triton_backend, torch_backend)
    )
    assert torch.equal(token_ids, others)
    torch.testing.assert_close(logprobs, wanted, atol=3e-5, rtol=1e-5)
    return others  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("vocab", "kinds", "parameters"),
    [*((33, [1, 3, 8], parameters) for parameters in PARAMETERS[:5]), (1100, KINDS, PARAMETERS[5])],
    ids=str,
)
def test_draws_are_the_torch_backends(vocab: int, kinds: list[int], parameters: dict[str, Any]) -> None:
    logits = hard_logits(vocab, torch.float32 if vocab == 33 else torch.bfloat16)[kinds].to(DEVICE)
    keys = row_keys(torch.arange(len(logits)), 1)[0].to(DEVICE)
    rows = Parameters(**parameters).for_rows(logits)
    token_ids, logprobs = triton_backend.draw(logits, keys, *rows)
    expected_ids, expected_logprobs = torch_backend.draw(logits, keys, *rows)
    sure = ~Ranked(logits.cpu()).cut(**parameters).either.any(-1).to(DEVICE)
    assert torch.equal(token_ids[sure], expected_ids[sure])
    torch.testing.assert_close(logprobs[sure], expected_logprobs[sure], atol=3e-5, rtol=1e-5)


def test_each_row_may_have_parameters_of_its_own() -> None:
    logits = hard_logits(150, torch.float32)[:4].to(DEVICE)
    row = torch.arange(len(logits), device=DEVICE)
    keys = row_keys(row, 1)[0]
    tensors: dict[str, Any] = {"temperature": 0.5 + 0.1 * row, "top_k": 1 + 19 * row, "top_p": 0.999 - 0.13 * row}
    agree("draw", logits, keys, *Parameters(**tensors, min_p=0.001 * row).for_rows(logits))


@pytest.mark.parametrize("vocab", [1, 129, 1100])
def test_the_most_likely_token_is_the_torch_backends(vocab: int) -> None:
    wide = hard_logits(vocab, torch.float32).repeat(1, 2).to(DEVICE)
    agree("most_likely", wide[:, :vocab])  # rows that lie apart


def test_among_equals_top_p_draws_the_lower_indices() -> None:
    logits = torch.full((6, 1100), -50.0, device=DEVICE)
    logits[:, torch.tensor([1090, 3, 130, 140, 600])] = 2.0
    keys = row_keys(torch.arange(6, device=DEVICE), 1)[0]
    token_ids, _ = triton_backend.draw(logits, keys, *Parameters(top_p=0.5).for_rows(logits))
    assert set(token_ids.flatten().tolist()) == {3, 130, 140}


@pytest.mark.parametrize("parameters", [{"temperature": 2.0, "top_k": 900, "top_p": 0.9, "min_p": 0.01}], ids=str)
def test_more_blocks_than_a_program_reads_at_a_time(parameters: dict[str, Any]) -> None:
    logits = hard_logits(5000, torch.float32)[[1, 3]].to(DEVICE)  # Zipf, ties
    keys = row_keys(torch.arange(len(logits)), 1)[0].to(DEVICE)
    agree("draw", logits, keys, *Parameters(**parameters).for_rows(logits))


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_parameters_at_the_ends_of_their_ranges(name: str) -> None:
    values: dict[str, Any] = {
        "temperature": [1e-46, 1e-40, 1e35, 1e39, math.inf],
        "top_k": [-(2**63), 0, 2**62],
        "top_p": [-1.0, 0.0, 1e-320, 1e-50, 7.0, math.inf],
        "min_p": [-1.0, 1e-320, 7.0, math.inf],
    }
    logits = hard_logits(150, torch.float32)[[1, 9]].to(DEVICE)
    rows = logits.repeat(len(values[name]), 1)
    dtype = torch.int64 if name == "top_k" else torch.float64
    given: dict[str, Any] = {name: torch.tensor(values[name], dtype=dtype, device=DEVICE).repeat_interleave(2)}
    keys = row_keys(torch.arange(2).repeat(len(values[name])), 1)[0].to(DEVICE)
    token_ids = agree("draw", rows, keys, *Parameters(**given).for_rows(rows))
    assert ((token_ids >= 0) & (token_ids < 150)).all()


@pytest.mark.parametrize(
    ("dtype", "parameters"),
    [
        (torch.float32, {"temperature": 1e-30}),
        (torch.float16, {"temperature": 1e20, "min_p": 0.1}),
        (torch.float64, {}),
        *((dtype, PARAMETERS[5]) for dtype in (torch.float32, torch.float16, torch.float64)),
    ],
    ids=str,
)
def test_logits_at_the_ends_of_their_type(dtype: torch.dtype, parameters: dict[str, Any]) -> None:
    kinds = [0, 3, 5, 8] if dtype == torch.float32 else [0, 4, 10]
    logits = extreme_logits(129, dtype)[kinds].to(DEVICE)
    keys = row_keys(torch.arange(len(logits)), 1)[0].to(DEVICE)
    agree("draw", logits, keys, *Parameters(**parameters).for_rows(logits))
    agree("most_likely", logits)


def test_dead_rows_give_token_zero_and_change_no_other_row() -> None:
    parameters = PARAMETERS[5]
    logits = hard_logits(150, torch.float32)[[10, 1, 11]].to(DEVICE)
    keys = row_keys(torch.arange(3), 1)[0].to(DEVICE)
    token_ids, logprobs = triton_backend.draw(logits, keys, *Parameters(**parameters).for_rows(logits))
    assert not token_ids[::2].any() and logprobs[::2].isneginf().all()
    alone, _ = triton_backend.draw(logits[1::2], keys[1::2], *Parameters(**parameters).for_rows(logits[1::2]))
    assert torch.equal(token_ids[1::2], alone)


def test_keys_and_parameters_need_not_be_contiguous() -> None:
    logits = hard_logits(150, torch.float32)[1:2].expand(3, -1).to(DEVICE)
    keys = row_keys(torch.arange(6), 1)[0].to(DEVICE)
    given: dict[str, Any] = {"top_p": torch.tensor([0.7], dtype=torch.float64, device=DEVICE).expand(3)}
    given["top_k"] = torch.arange(20, 26, device=DEVICE)[::2]
    given["temperature"] = torch.linspace(0.5, 1, 6, device=DEVICE)[::2]
    agree("draw", logits, keys[::2], *Parameters(**given).for_rows(logits))


def test_the_likeliest_tokens_launch_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up does not know of top_logprobs and beams; so they must compile nothing at their first token."""
    logits = hard_logits(300, torch.float32)[KINDS].to(DEVICE)
    expected = torch_backend.likeliest(logits, 4), torch_backend.highest(logits, 4)
    for module in (triton_kernels, triton_cuts):
        for name in ("survey", "most_likely", "draw", "list_blocks", "find_cut"):
            monkeypatch.setattr(module, name, None, raising=False)  # so that it cannot be launched
    found = triton_backend.likeliest(logits, 4), triton_backend.highest(logits, 4)
    for pair, others in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(pair, others, strict=True))


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls of torch that launch something, and kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number = func._schema.name == "aten::_local_scalar_dense"  # this number is on the CPU
        self.count += not self.paused and not number and launches(func)
        return func(*args, **(kwargs or {}))

    def kernel(self, kernel: Any) -> Any:
        """The same kernel, but counted; the torch calls of its interpreter are not counted."""
        counter = self

        class Counted:
            def __getitem__(self, grid: Any) -> Any:
                def run(*args: Any, **options: Any) -> None:
                    counter.count += 1
                    counter.paused = True
                    kernel[grid](*args, **options)
                    counter.paused = False

                return run

        return Counted()


@pytest.mark.parametrize(("settings", "most"), [({}, 3), ({"temperature": 0.8, "top_k": 5, "top_p": 0.9}, 8)])
def test_a_sampler_takes_few_launches(settings: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launches()
    for module, names in (
        (triton_kernels, ("survey", "most_likely", "draw")),
        (triton_cuts, ("list_blocks", "find_cut")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, launched.kernel(getattr(module, name)))
    logits, keys = torch.randn(2, 300, device=DEVICE), torch.arange(2, device=DEVICE)
    columns = Parameters(**settings).for_rows(logits)
    with launched:
        if settings:
            triton_backend.draw(logits, keys, *columns)
        else:
            triton_backend.most_likely(logits)
    assert 0 < launched.count <= most
