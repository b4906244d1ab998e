"""How often a verdict on a recorded text is wrong.

"verdicts": one token, one setting or one weight of 48 random receipts of the demo model is changed, in float32, and
each text is made anew: a verdict is wrong if it is "equal" and the new text is another one, or "different" and it is
the same. Near ties are counted apart. "unchanged": texts in bfloat16 are verified in other batches than they were made
in; none may be "different". Both read texts in blocks of a few tokens, as with large vocabularies, or of many.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import torch

import gen
from benchmarks.cases import random_sampler
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.receipts import blocks
from gen.receipts.reading import read_receipt

TYPES = (
    dict[str, int],
    gen.json_schema({"type": "array", "items": {"type": "string"}}),
    gen.regex("[a-z ]{5,30}[.]"),
    gen.grammar('start: "(" start ")" start | /[a-z]{1,4}/'),
)
WORDS = ("Once upon a time", "def main():", "The list of", "A letter to", "In the year", "{", "Dear", "x")
RECEIPTS = 48  # of a case


def random_receipts(model: Any, random: Random, count: int) -> list[gen.Receipt]:
    """Receipts of random calls, without those of errors."""
    prompts = [f"{random.choice(WORDS)} {random.randrange(100)}" for _ in range(count)]
    found: Any = gen.generate(
        model,
        prompts,
        [random.choice(TYPES) if random.random() < 0.3 else None for _ in prompts],
        sampler=[random_sampler(random) for _ in prompts],
        seed=[random.randrange(2**40) for _ in prompts],
        max_new_tokens=[random.randint(12, 40) for _ in prompts],
        stop=[random.choice([None, ["."], ["e", "\n"]]) for _ in prompts],
        details=True,
        shorten=True,
        errors="return",
    )
    return [one.receipt for one in found if isinstance(one, gen.Completion) and one.token_ids]


def changed(receipt: gen.Receipt, random: Random, what: str) -> gen.Receipt:
    """The receipt with another token or setting."""
    if what == "token":
        tokens = list(receipt.token_ids)
        at = random.randrange(len(tokens))
        if random.random() < 0.2:
            return replace(receipt, token_ids=tokens[:at], logprobs=receipt.logprobs[:at])
        tokens[at] = (tokens[at] + random.randint(1, 1900)) % 1950
        return replace(receipt, token_ids=tokens)
    sampler, settings = dict(receipt.sampler), dict(receipt.settings)
    kind = random.choice(["seed", "limit", "stops", "eos", "sampler", "sampler", "sampler"])
    if kind == "seed":
        return replace(receipt, seed=receipt.seed + 1)
    if kind == "limit":
        settings["limit"] = max(1, settings["limit"] + random.choice([-3, -1, 1, 5]))
    elif kind == "stops":
        settings["stops"] = random.choice([[], ["a"], [" the"]])
    elif kind == "eos":
        settings["eos_token_ids"] = [*settings["eos_token_ids"], random.randrange(5, 1900)]
    elif sampler["name"] == "greedy":
        sampler["repetition_penalty"] = sampler.get("repetition_penalty", 1.0) + 0.05
    else:
        name = random.choice(["temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty"])
        default = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        default |= {"presence_penalty": 0.2, "frequency_penalty": 0.2}
        value: Any = sampler.get(name, default[name])
        sampler[name] = value + 1 if name == "top_k" else value * random.choice([0.97, 0.999, 1.01])
    return replace(receipt, sampler=sampler, settings=settings)


def anew(model: Any, receipts: Sequence[gen.Receipt]) -> list[Any]:
    """What each receipt's request makes now: tokens, how it ended, and its text; or the error."""
    jobs = [new_job(model, read_receipt(model, one)) for one in receipts]
    run_all(model, jobs, Options())
    found: list[Any] = []
    for job in jobs:
        try:
            [one] = job.completions()
        except gen.GenError as error:
            found.append(error)
        else:
            found.append((one.token_ids, one.finish_reason, one.stop_reason, one.text))
    return found


def recorded(receipt: gen.Receipt) -> Any:
    return list(receipt.token_ids), receipt.finish_reason, receipt.stop_reason, receipt.text


def verified(model: Any, receipts: Sequence[gen.Receipt], random: Random) -> list[gen.Verification]:
    with patch.object(blocks, "_BLOCK", random.choice([1, 5, 256])):
        return gen.verify(model, receipts)


def verdicts(random: Random) -> tuple[Counter[str], list[str]]:
    """What is said of receipts, by what was changed."""
    counts, wrong = Counter[str](), list[str]()
    model: Any = gen.load("demo", device="cpu", pack=False)
    base = random_receipts(model, random, RECEIPTS)
    what = random.choice(["token", "setting", "weight"])
    given = base if what == "weight" else [changed(one, random, what) for one in base]
    if what == "weight":
        weights = [one for one in model.hf_model.parameters() if one.dim() > 1]
        with torch.no_grad():
            flat = random.choice(weights).view(-1)
            flat[random.randrange(len(flat))] += random.choice([1e-4, 1e-2, 1.0, 30.0]) * random.choice([-1, 1])
    for receipt, new, found in zip(given, anew(model, given), verified(model, given, random), strict=True):
        truth = "the same" if recorded(receipt) == new else "another"
        counts[f"{what}, {truth} text, {found.kind}"] += 1
        if found.kind == ("equal" if truth == "another" else "different"):
            wrong.append(f"{what}: {found} of {receipt}, made anew: {new}")
    return counts, wrong


def unchanged(model: Any, random: Random) -> tuple[Counter[str], list[str]]:
    """What is said of receipts that are read in other batches than they were made in."""
    receipts = list[gen.Receipt]()
    while len(receipts) < RECEIPTS:
        receipts += random_receipts(model, random, random.choice([1, 3, 8, 16]))
    random.shuffle(receipts)
    found = verified(model, receipts, random)
    counts = Counter(one.kind for one in found) + Counter(tokens=sum(one.tokens for one in found))
    return counts, [str(one) for one in found if one.kind == "different"]


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """One of both checks."""
    if given.kind == "verdicts":
        return lambda seed: verdicts(Random(seed))
    model = gen.load(given.model or "demo", device="cpu", dtype=given.dtype or "bfloat16")
    return lambda seed: unchanged(model, Random(seed))
