"""What virtual GPUs cost: a transformers decode step on a virtual GPU against the same step on the plain CPU.

    python -m benchmarks.virtual_gpus

The model is a Llama with random weights, so small that an operation costs about as much as its call: float32, batch 1,
a static cache. Rounds of both run in turn; the ratio is the median of the rounds' ratios. Goal: at most 10.
"""

import copy
import time
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from benchmarks.measuring import described, for_cache, publish, ratio, read_arguments
from virtual_gpus import virtual_gpus


def main() -> None:
    given = read_arguments(__doc__, hidden_size=64, layers=2, steps=(32, "decode steps in each round"), rounds=9)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=given.hidden_size,
        intermediate_size=2 * given.hidden_size,
        num_hidden_layers=given.layers,
        num_attention_heads=4,
    )
    model: Any = LlamaForCausalLM(config).eval()
    moved: Any = None
    on_cpu, on_gpu = [], []
    for number in range(given.rounds + 1):  # the first one warms up
        plain = _seconds_a_step(model, given.steps, "cpu")
        with virtual_gpus(2):
            moved = moved or copy.deepcopy(model).to("cuda:1")
            virtual = _seconds_a_step(moved, given.steps, "cuda:1")
        if number:
            on_cpu.append(plain)
            on_gpu.append(virtual)
    times = {"cpu_ms": median(on_cpu) * 1e3, "virtual_ms": median(on_gpu) * 1e3}
    publish(given, **described(given), **times, ratio=ratio(on_gpu, on_cpu))


@torch.inference_mode()
def _seconds_a_step(model: Any, steps: int, device: str) -> float:
    token_ids = torch.ones((1, 1), dtype=torch.int64, device=device)
    cache = StaticCache(config=model.config, max_cache_len=steps + 1)
    model(input_ids=token_ids, **for_cache(cache), use_cache=True)
    begin = time.perf_counter()
    for _ in range(steps):
        model(input_ids=token_ids, **for_cache(cache), use_cache=True)
    return (time.perf_counter() - begin) / steps


if __name__ == "__main__":
    main()
