"""Whether texts and log-probabilities are equal bit by bit with exact=True, alone and in any batch.

    python -m benchmarks.same_bits --requests 2000 --prompts 200 --dtype bfloat16

Random prompts, limits, seeds and samplers run alone, in batches of random sizes, in a few rows that are refilled, and
through an engine. The caches that prompts leave, and the logits after them, are compared too: each prompt is read
alone, in two parts, and in batches of random sizes. Every difference is counted; the exit status is 1 if there is one.
"""

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import gen
from benchmarks.decode import REAL
from gen.calls.reading import find_step_rows
from gen.completions import Completion
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.models.base import Rows
from gen.models.transformers.model import TransformersModel
from gen.requests.request import Request
from gen.samplers import Sampler

SAMPLERS: list[Sampler] = [
    gen.samplers.greedy(),
    gen.samplers.multinomial(temperature=0.9, top_k=40),
    gen.samplers.multinomial(top_p=0.9),
]


@dataclass(frozen=True)
class Differences:
    """For each way to make texts: how many were made, and how many of them were not equal to those made alone."""

    requests: int
    batches: int
    refilled: int
    engine: int

    @property
    def none(self) -> bool:
        return not (self.batches or self.refilled or self.engine)


def compare(model: TransformersModel, count: int, *, longest: int, new_tokens: int, seed: int = 0) -> Differences:
    """Run `count` random requests in every way.

    Args:
        longest: prompt, in tokens.
        new_tokens: at most.
    """
    drawn = random.Random(seed)
    known = min(model.vocab_size, model.tokenizer.vocab_size)
    prompts = [[drawn.randrange(known) for _ in range(drawn.randint(1, longest))] for _ in range(count)]
    limits = [drawn.randint(1, new_tokens) for _ in prompts]
    samplers = [drawn.choice(SAMPLERS) for _ in prompts]

    def run(numbers: list[int], rows: int | None = None) -> list[Completion]:
        if rows is None:
            found = gen.generate(
                model,
                [prompts[number] for number in numbers],
                sampler=[samplers[number] for number in numbers],
                max_new_tokens=[limits[number] for number in numbers],
                seed=numbers,
                eos_token_id=[],
                details=True,
                exact=True,
            )
            return [one for one in found if isinstance(one, Completion)]
        requests = [
            Request(prompt_ids=prompts[number], sampler=samplers[number], seeds=(number,), limit=limits[number])
            for number in numbers
        ]
        jobs = [new_job(model, request) for request in requests]
        run_all(model, jobs, Options(rows=rows, admit_tokens=64, step_rows=find_step_rows(model, True)))
        return [job.completions()[0] for job in jobs]

    alone = {number: run([number])[0] for number in range(count)}
    left, batches = [*range(count)], 0
    drawn.shuffle(left)
    while left:
        size = drawn.randint(2, 24)
        batches += sum(not _same(alone[n], one) for n, one in zip(left[:size], run(left[:size]), strict=True))
        left = left[size:]
    refilled = sum(not _same(alone[n], one) for n, one in enumerate(run([*range(count)], rows=8)))
    with gen.Engine(model, rows=8, max_waiting=count, exact=True) as engine:
        streams = [
            engine.submit(prompts[n], sampler=samplers[n], max_new_tokens=limits[n], seed=n, eos_token_id=[])
            for n in range(count)
        ]
        through = sum(not _same(alone[n], stream.completion()) for n, stream in enumerate(streams))
    return Differences(count, batches, refilled, through)


@torch.inference_mode()
def compare_prompts(model: TransformersModel, count: int, *, longest: int, seed: int = 0) -> int:
    """Read `count` random prompts alone, cut in two and in batches; returns how many differ from those read alone.

    Args:
        longest: prompt, in tokens.
    """
    drawn, length = random.Random(seed), longest + 64
    known = min(model.vocab_size, model.tokenizer.vocab_size)
    prompts = [[drawn.randrange(known) for _ in range(drawn.randint(1, longest))] for _ in range(count)]

    def found(rows: Rows, row: int, logits: Tensor, prompt: list[int]) -> list[Tensor]:
        kept = [tensor[row, :, : len(prompt)].clone() for name, tensor, _ in rows.parts() if "cache" in name]
        return [logits[row].clone(), *kept]

    alone, different = [], 0
    whole, parts = model.new_rows(1, length), model.new_rows(1, length - 32)
    for prompt in prompts:
        alone.append(found(whole, 0, whole.prefill(slice(0, 1), [prompt]), prompt))
        if cut := drawn.randrange(len(prompt)):
            parts.prefill(slice(0, 1), [prompt[:cut]])
            other = found(parts, 0, parts.prefill(slice(0, 1), [prompt[cut:]], [cut]), prompt)
            different += not all(map(torch.equal, alone[-1], other))
    first = 0
    while first < count:
        size = min(drawn.randint(2, 12), count - first)
        rows, batch = model.new_rows(size, length + 32), prompts[first : first + size]
        logits = rows.prefill(slice(0, size), batch)
        for row, prompt in enumerate(batch):
            different += not all(map(torch.equal, alone[first + row], found(rows, row, logits, prompt)))
        first += size
    return different


def _same(one: Completion, two: Completion) -> bool:
    return one.token_ids == two.token_ids and one.logprobs == two.logprobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=200, help="how many prompts to compare the caches of")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, default=REAL, help='a folder; "demo" is the demo model')
    parser.add_argument("--longest", type=int, default=96, help="the most tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=12, help="the most new tokens of a text")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = gen.load(
        arguments.model if arguments.model != Path("demo") else "demo", device="cpu", dtype=arguments.dtype
    )
    print(f"steps have at least {model.find_step_rows()} rows", flush=True)
    prompts = compare_prompts(model, arguments.prompts, longest=arguments.longest)
    print(f"{prompts} of {2 * arguments.prompts} readings of prompts differ", flush=True)
    found = compare(model, arguments.requests, longest=arguments.longest, new_tokens=arguments.new_tokens)
    print(found)
    sys.exit(0 if found.none and not prompts else 1)


if __name__ == "__main__":
    main()
