"""What virtual GPUs cost: a transformers decode step on a virtual GPU against the same step on the plain CPU.

    python -m benchmarks.virtual_gpus --json

The model is a Llama with random weights, so small that an operation costs about as much as its call. Rounds of both run
in turn; the ratio is the median of the rounds' ratios. Goal: at most 10.
"""

import argparse
import copy
import json
import time

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, StaticCache

from benchmarks.measuring import machine, ratio, spread
from virtual_gpus import virtual_gpus


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=arguments.hidden_size,
        intermediate_size=2 * arguments.hidden_size,
        num_hidden_layers=arguments.layers,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config).eval()
    on_cpu, on_gpu = [], []
    moved: PreTrainedModel | None = None
    for number in range(arguments.rounds + 1):  # the first one warms up
        plain = _seconds_a_step(model, torch.ones((1, 1), dtype=torch.int64), arguments.steps)
        with virtual_gpus(2):
            moved = moved or copy.deepcopy(model).to("cuda:1")
            virtual = _seconds_a_step(moved, torch.ones((1, 1), dtype=torch.int64, device="cuda:1"), arguments.steps)
        if number:
            on_cpu.append(plain)
            on_gpu.append(virtual)
    report = {
        "machine": machine(),
        "hidden_size": arguments.hidden_size,
        "layers": arguments.layers,
        "steps": arguments.steps,
        "rounds": arguments.rounds,
        "cpu_ms": spread(on_cpu).median * 1e3,
        "virtual_ms": spread(on_gpu).median * 1e3,
        "ratio": ratio(on_gpu, on_cpu),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(json.dumps(report["machine"]))
    print(f"hidden size {arguments.hidden_size}, {arguments.layers} layers, float32, batch 1, static cache")
    for name, seconds in (("plain CPU", on_cpu), ("virtual GPU", on_gpu)):
        told = spread(seconds)
        print(f"{name}: {told.median * 1e3:.2f} ms a step ({told.fastest * 1e3:.2f} to {told.slowest * 1e3:.2f})")
    print(f"ratio: {report['ratio']:.1f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32, help="decode steps in each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


@torch.inference_mode()
def _seconds_a_step(model: PreTrainedModel, token_ids: Tensor, steps: int) -> float:
    cache = StaticCache(config=model.config, max_cache_len=steps + 1)
    model(input_ids=token_ids, past_key_values=cache, use_cache=True)
    begin = time.perf_counter()
    for _ in range(steps):
        model(input_ids=token_ids, past_key_values=cache, use_cache=True)
    return (time.perf_counter() - begin) / steps


if __name__ == "__main__":
    main()
