"""Outlines 909 and 679: logits on one GPU, ids and weights on the other; and a bare "cuda" in another thread.

In Outlines each sampler adds the weights to log-probabilities on the logits' device, and a model's device is looked up
again at each call. The oracle is the same loop on the CPU.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gen
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, stored, tiny_model

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")
MIXED = "Expected all tensors to be on the same device"
PROMPTS = torch.tensor([[72, 101, 108, 108], [87, 111, 114, 108]])
Sampler = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor, Tensor]]
State = tuple[Tensor, Tensor]


def faulty_greedy(logits: Tensor, weights: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    token_ids = logprobs.argmax(-1, keepdim=True)
    ancestors = torch.arange(len(logits), device=logits.device)
    return token_ids, ancestors, weights + logprobs.gather(1, token_ids).squeeze(1)


def faulty_multinomial(logits: Tensor, weights: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    token_ids = torch.multinomial(logprobs.exp().cpu(), 1, generator=rng).to(logits.device)
    ancestors = torch.arange(len(logits), device=logits.device)
    return token_ids, ancestors, weights + logprobs.gather(1, token_ids).squeeze(1)


def faulty_beam_search(logits: Tensor, weights: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    total = logits.log_softmax(-1) + weights.unsqueeze(1)
    best, index = total.view(1, -1).topk(len(logits))
    return (index % logits.shape[1]).view(-1, 1), (index // logits.shape[1]).view(-1), best.view(-1)


def half_fixed_greedy(logits: Tensor, weights: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A fix of one line: the results stay on the logits' device."""
    return faulty_greedy(logits, weights.to(logits.device), rng)


FAULTY: list[Sampler] = [faulty_greedy, faulty_multinomial, faulty_beam_search]
SAMPLERS: dict[str, tuple[Sampler, int]] = {
    "greedy": (gen.samplers.greedy(), 1),
    "multinomial": (gen.samplers.multinomial(), 1),
    "filtered": (gen.samplers.multinomial(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01), 1),
    "beam_search": (gen.samplers.beam_search(3), 3),
}


def loop(sampler: Sampler, rows: int, model: torch.nn.Module, *, weights_device: torch.device) -> list[State]:
    """A generator loop like Outlines': the ids and weights of every step, chosen by their ancestors.

    The model takes ids from any device and gives logits on its own, like one that its loader has split over GPUs.
    """
    model_device = next(model.parameters()).device
    token_ids = PROMPTS.repeat_interleave(rows, 0).to(weights_device)
    weights = torch.zeros(len(token_ids), device=weights_device)
    rng = torch.Generator().manual_seed(7)
    states = []
    for _ in range(6):
        logits = model(token_ids.to(model_device)).logits[:, -1, : len(byte_tokenizer())]
        next_token_ids, ancestors, weights = sampler(logits, weights, rng)
        token_ids = torch.index_select(token_ids, 0, ancestors)
        token_ids = torch.cat([token_ids, next_token_ids], dim=-1)
        states.append((token_ids, weights))
    return states


@pytest.mark.parametrize("sampler", FAULTY)
@torch.inference_mode()
def test_samplers_that_add_weights_to_logprobs_of_another_gpu_fail(two_gpus: None, sampler: Sampler) -> None:
    with pytest.raises(RuntimeError, match=MIXED):
        loop(sampler, 1, tiny_model().to(GPU0), weights_device=GPU1)


@torch.inference_mode()
def test_moving_the_weights_alone_fails_one_line_later(two_gpus: None) -> None:
    logits, weights = torch.randn(2, 8, device=GPU0), torch.zeros(2, device=GPU1)
    ancestors = half_fixed_greedy(logits, weights, torch.Generator())[1]
    assert ancestors.device == GPU0
    with pytest.raises(RuntimeError, match=MIXED):
        torch.index_select(PROMPTS.to(GPU1), 0, ancestors)


@pytest.mark.parametrize("name", SAMPLERS)
@torch.inference_mode()
def test_gens_samplers_work_in_that_loop_and_give_the_cpus_tokens(two_gpus: None, name: str) -> None:
    sampler, rows = SAMPLERS[name]
    expected = loop(sampler, rows, tiny_model(), weights_device=torch.device("cpu"))
    states = loop(sampler, rows, tiny_model().to(GPU0), weights_device=GPU1)
    for (token_ids, weights), (cpu_token_ids, cpu_weights) in zip(states, expected, strict=True):
        assert (token_ids.device, weights.device) == (GPU1, GPU1)
        assert torch.equal(token_ids.cpu(), cpu_token_ids)
        torch.testing.assert_close(weights.cpu(), cpu_weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_generator_of_the_weights_gpu_is_taken_too(two_gpus: None, name: str) -> None:
    sampler, rows = SAMPLERS[name]
    rng = torch.Generator(GPU1).manual_seed(7)
    results = sampler(torch.randn(2 * rows, 8, device=GPU0), torch.zeros(2 * rows, device=GPU1), rng)
    assert [result.device for result in results] == [GPU1] * 3


class FaultyModel:
    """Resolves "cuda" at each call, in whatever thread that is."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.weights = torch.eye(8, device=device)

    def __call__(self) -> Tensor:
        return torch.ones(1, 8, device=self.device) @ self.weights


def test_a_bare_cuda_is_another_gpu_in_another_thread(two_gpus: None) -> None:
    with torch.cuda.device(1), ThreadPoolExecutor(1) as pool:
        model = FaultyModel("cuda")
        assert model().device == GPU1
        with pytest.raises(RuntimeError, match=MIXED):
            pool.submit(model).result()


def test_a_model_made_for_cuda_1_has_everything_there_from_any_thread(two_gpus: None, tmp_path: Path) -> None:
    stored(tiny_model(), tmp_path)

    def texts(model: TransformersModel) -> list[str]:
        result: list[str] = gen.generate(model, ["Ada", "hello"], seed=5, max_new_tokens=4)
        return result

    expected = texts(gen.load(tmp_path, device="cpu"))
    with torch.cuda.device(1):
        bare = gen.load(tmp_path, device="cuda", probe=False)
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(gen.load, tmp_path, device="cuda:1", probe=False).result()
        for model in (bare, elsewhere, gen.load(tmp_path, device=1, probe=False)):
            assert model.placement.devices == (GPU1,)
            tensors = [*model.hf_model.parameters(), *model.hf_model.buffers()]
            assert {tensor.device for tensor in tensors} == {GPU1}
            assert texts(model) == expected
            assert pool.submit(texts, model).result() == expected
