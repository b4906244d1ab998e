"""What verifying recorded texts takes, over what making them takes; and how often its verdict is wrong.

    python -m benchmarks.receipts --model models/SmolLM2-135M-Instruct
    python -m benchmarks.receipts --model models/SmolLM2-135M-Instruct --rounds 0 --texts 32
    python -m benchmarks.receipts --verdicts 2000
    python -m benchmarks.receipts --unchanged 500

Times are CPU seconds of one thread, in which making and verifying take turns: one text of 200 tokens in `--rounds`, and
`--texts` of 100 tokens, made one by one and in 32 rows; 0 leaves one out.

`--verdicts` changes one token, one setting or one weight of random receipts of the demo model, in float32, and makes
each text anew: a verdict is wrong if it is "equal" and the new text is another one, or "different" and it is the same.
Near ties are counted apart. `--unchanged` verifies texts in bfloat16 that were made in other batches.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, ratio, spread, write_json
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.receipts.reading import read_receipt

TOKENS, OF_MANY = 200, 100
SAMPLERS = gen.samplers
TYPES = (
    dict[str, int],
    gen.json_schema({"type": "array", "items": {"type": "string"}}),
    gen.regex("[a-z ]{5,30}[.]"),
    gen.grammar('start: "(" start ")" start | /[a-z]{1,4}/'),
)
DRAWS = {"greedy": SAMPLERS.greedy(), "top-k, top-p": SAMPLERS.multinomial(temperature=0.9, top_k=50, top_p=0.9)}
WORDS = ("Once upon a time", "def main():", "The list of", "A letter to", "In the year", "{", "Dear", "x")


def made(model: Any, prompts: list[str], seeds: Sequence[int], **settings: Any) -> list[gen.Receipt]:
    """Receipts of texts that do not end before their limit."""
    found: Any = gen.generate(model, prompts, seed=list(seeds), eos_token_id=[], details=True, **settings)
    return [one.receipt for one in found]


def measure_one(model: Any, rounds: int) -> list[dict[str, Any]]:
    """CPU seconds of making and verifying one text; the first round does not count."""
    rows = []
    for name, sampler in DRAWS.items():
        making, verifying = list[float](), list[float]()
        for number in range(rounds + 1):
            begin = process_time()
            one = made(
                model,
                [f"{WORDS[number % 8]} {number}"],
                [number],
                sampler=sampler,
                max_new_tokens=TOKENS,
                speculate=False,
            )
            between = process_time()
            kinds = Counter(found.kind for found in gen.verify(model, one))
            making.append(between - begin)
            verifying.append(process_time() - between)
            assert kinds == {"equal": 1}, kinds
        rows.append(told("one text", name, making[1:], verifying[1:]))
    return rows


def measure_many(model: Any, texts: int, rounds: int) -> list[dict[str, Any]]:
    """CPU seconds of making texts one by one and in 32 rows, and of verifying them together."""
    prompts = [f"{WORDS[number % 8]} {number}" for number in range(texts)]
    name, sampler = [*DRAWS.items()][-1]
    gen.verify(model, made(model, prompts[:1], [0], max_new_tokens=2))  # which makes the digest of the weights
    each, together, verifying = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        receipts = list[gen.Receipt]()
        for size, taken in ((1, each), (32, together)):
            begin, receipts = process_time(), []
            for first in range(0, texts, size):
                part = prompts[first : first + size]
                seeds = range(first, first + len(part))
                receipts += made(model, part, seeds, sampler=sampler, max_new_tokens=OF_MANY, speculate=False)
            taken.append(process_time() - begin)
        begin = process_time()
        kinds = Counter(one.kind for one in gen.verify(model, receipts))
        verifying.append(process_time() - begin)
        assert kinds["different"] == 0, kinds
    ways = {"one by one": each, "in 32 rows": together}
    return [told(f"{texts} texts, made {way}", name, taken, verifying) for way, taken in ways.items()]


def told(what: str, sampler: str, making: list[float], verifying: list[float]) -> dict[str, Any]:
    row = {
        "what": what,
        "sampler": sampler,
        "making s": asdict(spread(making)),
        "verifying s": asdict(spread(verifying)),
        "ratio": ratio(verifying, making),
    }
    print(json.dumps(row), flush=True)
    return row


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


def random_sampler(random: Random) -> Any:
    if random.random() < 0.2:
        return SAMPLERS.greedy(repetition_penalty=random.choice([1.0, 1.2]))
    given: dict[str, Any] = {"temperature": random.uniform(0.5, 1.3)}
    choices = {"top_k": random.randint(2, 60), "top_p": random.uniform(0.5, 0.99), "min_p": random.uniform(0.01, 0.2)}
    others = {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "no_repeat_ngram_size": 3, "min_new_tokens": 8}
    for name, value in {**choices, **others}.items():
        if random.random() < 0.3:
            given[name] = value
    return SAMPLERS.multinomial(**given)


def changed(receipt: gen.Receipt, random: Random, what: str) -> gen.Receipt:
    """The receipt with another token or setting."""
    if what == "token":
        tokens = list(receipt.token_ids)
        at = random.randrange(len(tokens))
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
        default = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 0.2, "frequency_penalty": 0.2}
        value: Any = sampler.get(name, default.get(name))
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


def verdicts(count: int) -> dict[str, Any]:
    """How often verdicts are wrong, by what was changed."""
    random, counts, done = Random(0), Counter[str](), 0
    while done < count:
        model: Any = gen.load("demo", device="cpu", pack=False)
        base = random_receipts(model, random, 48)
        what = random.choice(["token", "setting", "weight"])
        given = base if what == "weight" else [changed(one, random, what) for one in base]
        if what == "weight":
            weights = [one for one in model.hf_model.parameters() if one.dim() > 1]
            with torch.no_grad():
                flat = random.choice(weights).view(-1)
                flat[random.randrange(len(flat))] += random.choice([1e-4, 1e-2, 1.0, 30.0]) * random.choice([-1, 1])
        recorded = [(list(one.token_ids), one.finish_reason, one.stop_reason, one.text) for one in given]
        for receipt, old, new, found in zip(given, recorded, anew(model, given), gen.verify(model, given), strict=True):
            truth = "the same" if old == new else "another"
            counts[f"{what}, {truth} text, {found.kind}"] += 1
            if found.kind == ("equal" if truth == "another" else "different"):
                counts["wrong"] += 1
                print("wrong:", what, found, receipt, new, sep="\n", flush=True)
        done += len(given)
    return {"verdicts": done, "wrong": counts["wrong"], **dict(sorted(counts.items()))}


def unchanged(model: Any, count: int) -> dict[str, Any]:
    """The verdicts of unchanged texts that are read in other batches than they were made in."""
    random, counts, tokens, nearest = Random(0), Counter[str](), 0, 0.0
    receipts: list[gen.Receipt] = []
    while len(receipts) < count:
        receipts += random_receipts(model, random, random.choice([1, 3, 8, 16]))
    random.shuffle(receipts)
    for one in gen.verify(model, receipts):
        counts[one.kind] += 1
        tokens += one.tokens
        if one.margin is not None and one.tolerance:
            nearest = max(nearest, one.margin / one.tolerance)
    return {
        "texts": len(receipts),
        "tokens": tokens,
        "dtype": str(model.placement.dtype),
        **counts,
        "largest margin over tolerance": round(nearest, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--verdicts", type=int)
    parser.add_argument("--unchanged", type=int)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), "model": Path(asked.model).name}
    if asked.verdicts:
        found["wrong verdicts"] = verdicts(asked.verdicts)
    elif asked.unchanged:
        found["unchanged"] = unchanged(gen.load(asked.model, device="cpu", dtype="bfloat16"), asked.unchanged)
    else:
        model, rounds = gen.load(asked.model, device="cpu"), asked.rounds
        found["times"] = measure_one(model, rounds) if rounds else []
        if asked.texts:
            found["times"] += measure_many(model, asked.texts, max(1, rounds // 3))
    print(json.dumps({name: value for name, value in found.items() if name not in ("machine", "times")}, indent=1))
    if asked.json is not None:
        write_json(asked.json, found)


if __name__ == "__main__":
    main()
