"""The Triton path against the torch path and the reference; not collected by itself, see `test_triton_path`.

With TRITON_INTERPRET=1 the kernels run on the CPU, else on cuda:0.
"""

import os
from typing import Any

import pytest
import torch

from gen.samplers import torch_path, triton_path
from gen.samplers.parameters import Parameters
from gen.samplers.random import row_keys
from tests.samplers.float64_reference import Ranked, hard_logits

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda:0"
KINDS = [1, 3, 4, 8, 9, 10]  # of the rows of hard_logits: the interpreter is slow
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.83},
    {"min_p": 0.05},
    {"temperature": 1.3, "top_k": 17, "top_p": 0.6, "min_p": 0.01},
]


@pytest.mark.parametrize("vocab", [33, 1100])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_draws_are_the_torch_paths(vocab: int, parameters: dict[str, Any]) -> None:
    logits = hard_logits(vocab, torch.float32 if vocab == 33 else torch.bfloat16)[KINDS].to(DEVICE)
    keys = row_keys(torch.arange(len(logits)), 1)[0].to(DEVICE)
    rows = Parameters(**parameters).for_rows(logits)
    token_ids, logprobs = triton_path.draw(logits, keys, rows)
    expected_ids, expected_logprobs = torch_path.draw(logits, keys, rows)
    sure = ~Ranked(logits.cpu()).cut(**parameters).either.any(-1).to(DEVICE)
    assert torch.equal(token_ids[sure], expected_ids[sure])
    torch.testing.assert_close(logprobs[sure], expected_logprobs[sure], atol=3e-5, rtol=1e-5)


def test_each_row_may_have_parameters_of_its_own() -> None:
    logits = hard_logits(300, torch.float32)[:6].to(DEVICE)
    row = torch.arange(len(logits), device=DEVICE)
    keys = row_keys(row, 1)[0]
    tensors: dict[str, Any] = {"temperature": 0.5 + 0.1 * row, "top_k": 1 + 19 * row, "top_p": 0.999 - 0.13 * row}
    rows = Parameters(**tensors, min_p=0.001 * row).for_rows(logits)
    (token_ids, logprobs), (others, other_logprobs) = (
        path.draw(logits, keys, rows) for path in (triton_path, torch_path)
    )
    assert torch.equal(token_ids, others)
    torch.testing.assert_close(logprobs, other_logprobs, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [1, 129, 1100])
def test_the_most_likely_token_is_the_torch_paths(vocab: int) -> None:
    wide = hard_logits(vocab, torch.float32).repeat(1, 2).to(DEVICE)
    logits = wide[:, :vocab]  # rows that lie apart
    token_ids, logprobs = triton_path.most_likely(logits)
    expected_ids, expected_logprobs = torch_path.most_likely(logits)
    assert torch.equal(token_ids, expected_ids)
    torch.testing.assert_close(logprobs, expected_logprobs, atol=3e-5, rtol=1e-5)


def test_among_equals_top_p_draws_the_lower_indices() -> None:
    logits = torch.full((20, 1100), -50.0, device=DEVICE)
    logits[:, torch.tensor([1090, 3, 130, 140, 600])] = 2.0
    keys = row_keys(torch.arange(20, device=DEVICE), 1)[0]
    token_ids, _ = triton_path.draw(logits, keys, Parameters(top_p=0.5).for_rows(logits))
    assert set(token_ids.flatten().tolist()) == {3, 130, 140}


@pytest.mark.parametrize("parameters", [{"top_k": 40}, {"top_p": 0.9}, {"temperature": 2.0, "min_p": 0.01}], ids=str)
def test_more_blocks_than_a_program_reads_at_a_time(parameters: dict[str, Any]) -> None:
    logits = hard_logits(5000, torch.float32)[[1, 3, 4]].to(DEVICE)  # Zipf, ties, flat
    keys = row_keys(torch.arange(len(logits)), 1)[0].to(DEVICE)
    rows = Parameters(**parameters).for_rows(logits)
    (token_ids, logprobs), (others, other_logprobs) = (
        path.draw(logits, keys, rows) for path in (triton_path, torch_path)
    )
    assert torch.equal(token_ids, others)
    torch.testing.assert_close(logprobs, other_logprobs, atol=3e-5, rtol=1e-5)
