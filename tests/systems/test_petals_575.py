"""Petals 575: a throughput probe began with an empty KV cache that was left on the CPU, and its first step failed.

In gen, rows make their cache with the first prompt, on the layers' devices; there is no empty cache to forget. The
oracle is the CPU's cache.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import gen
from gen.models.base import Rows
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model

CPU, GPU1 = torch.device("cpu"), torch.device("cuda:1")
SHAPES = ["llama", "gpt2", "gemma3", "mixtral", "deepseek_v3"]
PROMPTS = [[72, 105], [65, 100, 97]]
LENGTH = 16


class FaultyBlock:
    """Attention over a cache that grows by concatenation, as in a server's block."""

    def __init__(self, device: torch.device) -> None:
        self.project = torch.linspace(-1, 1, 64, device="cpu").view(8, 8).to(device)

    def step(self, hidden: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        keys = torch.cat((cache[0], hidden @ self.project), 1)
        values = torch.cat((cache[1], hidden), 1)
        return (hidden @ keys.mT).softmax(-1) @ values, (keys, values)

    def probe(self, cache: tuple[Tensor, Tensor], steps: int = 3) -> Tensor:
        """The throughput probe: decode steps from an empty cache."""
        hidden = torch.ones(2, 1, 8, device=self.project.device)
        for _ in range(steps):
            hidden, cache = self.step(hidden, cache)
        return hidden


def test_an_empty_cache_that_is_left_on_the_cpu_fails_at_the_first_step(two_gpus: None) -> None:
    block = FaultyBlock(GPU1)
    forgotten = (torch.empty(2, 0, 8), torch.empty(2, 0, 8))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        block.probe(forgotten)
    expected = FaultyBlock(CPU).probe(forgotten)
    torch.testing.assert_close(block.probe((forgotten[0].to(GPU1), forgotten[1].to(GPU1))).cpu(), expected)


def adapter(shape: str, device: torch.device) -> TransformersModel:
    return gen.from_transformers(tiny_model(shape).to(device), byte_tokenizer(), probe=False)


@torch.inference_mode()
def probe(model: TransformersModel, new_tokens: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Prompts and decode steps by themselves: each one's logits, and every tensor that the rows keep after it."""
    rows = model.new_rows(len(PROMPTS), LENGTH)
    logits = rows.prefill(slice(0, len(PROMPTS)), PROMPTS)
    for step in range(new_tokens):
        if step:
            logits = rows.step(logits.argmax(-1, keepdim=True), LENGTH)
        yield logits, kept_by(rows)


def kept_by(rows: Rows) -> dict[str, Tensor]:
    """Every tensor that rows keep, by its name; on one device each name occurs once."""
    parts = list(rows.parts())
    named = {name: tensor for name, tensor, _ in parts}
    assert len(named) == len(parts)
    return named


@pytest.mark.parametrize("shape", SHAPES)
def test_empty_rows_of_gen_have_nothing_on_another_device(two_gpus: None, shape: str) -> None:
    model = adapter(shape, GPU1)
    assert {tensor.device for tensor in kept_by(model.new_rows(2, LENGTH)).values()} == {GPU1}


@pytest.mark.parametrize("shape", SHAPES)
def test_all_of_gens_cache_is_on_gpu_1_through_a_warm_up_and_a_benchmark(two_gpus: None, shape: str) -> None:
    model, reference = adapter(shape, GPU1), adapter(shape, CPU)
    warm_up = gen.generate(model, ["Ada", ""], seed=1, max_new_tokens=2)
    assert warm_up == gen.generate(reference, ["Ada", ""], seed=1, max_new_tokens=2)
    for new_tokens in (1, 2, 6):  # the warm-up's lengths, then the benchmark's
        steps = zip(probe(model, new_tokens), probe(reference, new_tokens), strict=True)
        for (logits, tensors), (cpu_logits, cpu_tensors) in steps:
            assert logits.device == GPU1
            assert {name: tensor.device for name, tensor in tensors.items()} == dict.fromkeys(cpu_tensors, GPU1)
            layers = {f"the cache's {name} of layer {number}" for name in ("keys", "values") for number in range(2)}
            assert {*layers, "the columns", "the positions"} <= set(tensors)
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor.cpu(), cpu_tensors[name], rtol=1e-4, atol=1e-4, msg=name)
            torch.testing.assert_close(logits.cpu(), cpu_logits, rtol=1e-4, atol=1e-4)
