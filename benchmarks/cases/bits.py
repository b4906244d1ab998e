"""Whether texts and log-probabilities are equal bit by bit with exact=True, alone and in any batch.

Random prompts, limits, seeds and samplers run alone, in batches of random sizes, in a few rows that are refilled, and
through an engine. The caches that prompts leave, and the logits after them, are compared too: each prompt is read
alone, in two parts, and in batches of random sizes.
"""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import gen
from gen.completions import Completion
from gen.models.base import Rows
from gen.models.transformers.model import TransformersModel
from gen.samplers import Sampler

SAMPLERS: list[Sampler] = [
    gen.samplers.greedy(),
    gen.samplers.multinomial(temperature=0.9, top_k=40),
    gen.samplers.multinomial(top_p=0.9),
]


REQUESTS, PROMPTS = 50, 12  # of a case


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


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """The demo model in bfloat16, or what is given."""
    model: TransformersModel = gen.load(given.model or "demo", device="cpu", dtype=given.dtype or "bfloat16")
    model.find_step_rows()
    longest = given.longest or 96

    def check(seed: int) -> tuple[Counter[str], list[str]]:
        readings = compare_prompts(model, PROMPTS, longest=longest, seed=seed)
        texts = compare(model, REQUESTS, longest=longest, new_tokens=12, seed=seed)
        wrong = [] if texts.none and not readings else [f"{readings} readings of prompts, {asdict(texts)}"]
        return Counter(requests=REQUESTS, prompts=PROMPTS), wrong

    return check


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

    def run(numbers: list[int], most: int | None = None) -> list[Completion]:
        found: list[Completion] = gen.generate(
            model,
            [prompts[number] for number in numbers],
            sampler=[samplers[number] for number in numbers],
            max_new_tokens=[limits[number] for number in numbers],
            seed=numbers,
            eos_token_id=[],
            details=True,
            exact=True,
            max_batch_tokens=most,
        )
        return found

    alone = {number: run([number])[0] for number in range(count)}
    left, batches = [*range(count)], 0
    drawn.shuffle(left)
    while left:
        size = drawn.randint(2, 24)
        batches += sum(not _same(alone[n], one) for n, one in zip(left[:size], run(left[:size]), strict=True))
        left = left[size:]
    refilled = sum(not _same(alone[n], one) for n, one in enumerate(run([*range(count)], 8 * (longest + new_tokens))))
    with gen.Engine(model, rows=8, max_waiting=count, admit_tokens=64, exact=True) as engine:
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
