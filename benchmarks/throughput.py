"""How fast gen decodes on each device, against transformers.generate and a bare forward, and whether tokens agree.

    python -m benchmarks.throughput --devices cuda:0 cuda:1 --model demo --batch 1 8 32 --new-tokens 128

All cases of a batch size run in turn, round by round; times are medians over rounds, ratios medians of each round's
ratio. On a CPU with one thread they are CPU time of the thread, else wall time. "gen" is `gen.generate` (drawing,
log-probabilities and text included), "transformers" is its `generate` drawing from the same distribution, "bare" only
reads the prompts and runs decode steps. Last come many prompts of 2 to 60 tokens, greedy, each with its own limit of 8
to 320 new tokens: gen in one call, transformers in fixed batches of 32 that run until their longest text ends.
"""

import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

import gen
from benchmarks.measuring import clock_for, described, interleave, publish, ratio, read_arguments, span
from benchmarks.programs import Program, bare, ours, pad_left, some_prompts, theirs
from gen.devices import available_devices, resolve_device
from gen.errors import DeviceError
from gen.models.transformers.model import TransformersModel

SAMPLED, GREEDY = gen.samplers.multinomial(), gen.samplers.greedy()
SHORTEST, LONGEST = 8, 320  # new tokens, where limits differ
FIXED = 32  # how many rows transformers has at a time, where limits differ
Models = dict[str, TransformersModel]
Row = dict[str, Any]


def main() -> None:
    given = read_arguments(
        __doc__,
        devices=(["cpu"], "such as cuda:0 cuda:1; others are compared to the first"),
        model=("demo", 'a directory, a Hub id, or "demo"'),
        dtype=(str, "the dtype of the weights; default: the checkpoint's"),
        batch=([1, 8, 32], "batch sizes; none: only --prompts"),
        new_tokens=128,
        prompts=(200, "how many prompts with a limit each; 0 for none"),
        rounds=5,
        threads=(1, "torch's threads on the CPU"),
    )
    models = {str(one): gen.load(given.model, device=one, dtype=given.dtype) for one in existing(given.devices)}
    rows, same = list[Row](), {}
    for batch in given.batch:
        prompts = some_prompts(batch)
        rows += measure(models, prompts, given)
        same[str(batch)] = same_tokens(models, prompts, given.new_tokens)
        share = same[str(batch)]
        told = "one device only" if share is None else f"{share:.1%} of texts equal on all devices"
        print(f"batch {batch}, same seed: {told}")
    mixed = [*measure_mixed(models, given)] if given.prompts else []
    publish(given, arguments=described(given), rows=rows, same_tokens=same, mixed=mixed)


def existing(names: list[str]) -> list[torch.device]:
    """The devices that exist, or the CPU if none does; prints those that are missing."""
    devices = []
    for name in names:
        try:
            devices.append(resolve_device(name))
        except DeviceError as error:
            print(f"left out: {error}", file=sys.stderr)
    return list(dict.fromkeys(devices)) or available_devices()[:1]


def measure(models: Models, prompts: list[str], given: Namespace) -> Iterator[Row]:
    """A row for each device and program."""
    cases: dict[tuple[str, str], Program] = {}
    new_tokens, first = given.new_tokens, next(iter(models))
    for device, model in models.items():
        cases["gen", device] = ours(model, prompts, SAMPLED, new_tokens)
        cases["transformers", device] = theirs(model, prompts, new_tokens, do_sample=True, top_k=0)
        cases["bare", device] = bare(model, prompts, new_tokens)
    seconds = interleave(cases, given.rounds, clock=clock_for(first, given.threads))
    for (program, device), times in seconds.items():
        steps = span("ms/step", [1000 * time / new_tokens for time in times])
        yield {
            "batch": len(prompts),
            "program": program,
            "device": device,
            "tokens/s": round(1000 * len(prompts) / steps["ms/step"]),
            **steps,
            f"time / {first}": round(ratio(times, seconds[program, first]), 3),
            "time / transformers": round(ratio(times, seconds["transformers", device]), 3),
            "time / bare": round(ratio(times, seconds["bare", device]), 3),
        }


def measure_mixed(models: Models, given: Namespace) -> Iterator[Row]:
    """Prompts with a limit each: a row for each device and program."""
    draw = random.Random(1)
    vocabulary = min(model.tokenizer.vocab_size for model in models.values())
    prompts = [[draw.randrange(10, vocabulary) for _ in range(draw.randint(2, 60))] for _ in range(given.prompts)]
    limits = [int(SHORTEST * (LONGEST / SHORTEST) ** draw.random()) for _ in prompts]
    made: dict[tuple[str, str], list[list[int]]] = {}

    def kept(key: tuple[str, str]) -> Program:
        """A case that keeps its texts."""
        run = in_one_call if key[0] == "gen" else in_fixed_batches
        return lambda: made.update({key: run(models[key[1]], prompts, limits)})

    cases = {(program, device): kept((program, device)) for device in models for program in ("gen", "transformers")}
    clock = clock_for(next(iter(models)), given.threads)
    seconds = interleave(cases, given.rounds, clock=clock)
    for (program, device), times in seconds.items():
        peer = ("transformers", device)
        yield {
            "prompts": len(prompts),
            "new tokens": sum(limits),
            "program": program,
            "device": device,
            "tokens/s": round(sum(limits) / median(times)),
            **span("s", times, 2),
            "time / transformers": round(ratio(times, seconds[peer]), 3),
            "same texts": sum(mine == other for mine, other in zip(made[program, device], made[peer], strict=True)),
        }


def in_one_call(model: TransformersModel, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    found = gen.generate(model, prompts, sampler=GREEDY, max_new_tokens=limits, eos_token_id=[], details=True)
    return [completion.token_ids for completion in found]


def in_fixed_batches(model: TransformersModel, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    from transformers import GenerationConfig

    model.hf_model.generation_config.eos_token_id = None
    device, made = model.placement.input_device, []
    for first in range(0, len(prompts), FIXED):
        here = slice(first, first + FIXED)
        token_ids, mask = (tensor.to(device) for tensor in pad_left(prompts[here]))
        config = GenerationConfig(do_sample=False, max_new_tokens=max(limits[here]), pad_token_id=0)
        rows = model.hf_model.generate(token_ids, attention_mask=mask, generation_config=config).tolist()
        width = token_ids.shape[1]
        made += [row[width : width + limit] for row, limit in zip(rows, limits[here], strict=True)]
    return made


def same_tokens(models: Models, prompts: list[str], new_tokens: int) -> float | None:
    """The share of prompts whose tokens are the same with all models; None with a single one."""
    if len(models) < 2:
        return None
    seeds = list(range(len(prompts)))
    how: dict[str, Any] = {"sampler": SAMPLED, "max_new_tokens": new_tokens, "eos_token_id": []}
    found = [gen.generate(model, prompts, seed=seeds, details=True, **how) for model in models.values()]
    equal = [all(one.token_ids == first.token_ids for one in others) for first, *others in zip(*found, strict=True)]
    return sum(equal) / len(equal)


if __name__ == "__main__":
    main()
