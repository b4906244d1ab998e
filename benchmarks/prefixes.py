"""What shared beginnings of prompts save, against transformers with a reused cache; and that texts stay the same.

    python -m benchmarks.prefixes --model models/SmolLM2-135M-Instruct
    python -m benchmarks.prefixes --texts 1000

Prompts have 600 shared tokens and 30 of their own, or share nothing; 20 new tokens each, greedy. "gen" reads once what
they share, "reading each" has that turned off. "a copied cache" reads the shared tokens once with transformers, and
gives a copy of that cache to `generate` for each prompt; "a repeated cache" repeats it for batches of 16. All take
turns, in CPU seconds of one thread.

`--texts` runs random calls instead: trees of shared beginnings, all kinds of samplers, prompts read in parts, little
room. Each text is compared with that of a call of its own.
"""

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, ratio, spread, write_json
from gen.calls import read_call
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.prefixes import beginnings
from gen.loop.run_all import run_all
from gen.requests.settings import Settings

SHARED, OWN, NEW = 600, 30, 20
REPEATED = 16  # prompts of a batch of transformers'


@contextmanager
def nothing_shared() -> Iterator[None]:
    """In the block each prompt is read as a whole."""
    least, beginnings.LEAST = beginnings.LEAST, 2**62
    try:
        yield
    finally:
        beginnings.LEAST = least


@dataclass(frozen=True)
class Case:
    """A call of random prompts that begin alike, as trees do: the arguments of `generate`, and how it is run."""

    prompts: list[list[int]]
    output_type: Any
    settings: dict[str, Any]
    options: Options

    def alone(self, number: int) -> "Case":
        """A call of one of its prompts, with all the room that it may want."""
        each = ("seed", "max_new_tokens")
        settings = {name: [value[number]] if name in each else value for name, value in self.settings.items()}
        return Case([self.prompts[number]], self.output_type, settings, Options())


def random_case(seed: int, vocabulary: int, *, tokens: int = 120) -> Case:
    """A case of prompts over the ids 10 to vocabulary - 1, whose shared beginnings have up to about `tokens` tokens."""
    random = Random(seed)

    def some(least: int, most: int) -> list[int]:
        return [random.randrange(10, vocabulary) for _ in range(random.randint(least, most))]

    systems = [some(tokens * 3 // 4, tokens) for _ in range(2)]
    documents = [system + some(tokens // 6, tokens * 3 // 4) for system in systems for _ in range(3)]

    def prompt() -> list[int]:
        begin = random.choice(documents if random.random() < 0.7 else systems)
        if random.random() < 0.2:
            begin = begin[: random.randrange(5, len(begin))]
        return begin + some(1, 29) if random.random() < 0.8 else begin

    prompts = [prompt() for _ in range(random.randint(3, 13))]
    limits = [random.randint(1, 19) for _ in prompts]
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (gen.samplers.greedy(), None, {}),
        (gen.samplers.multinomial(temperature=0.9, samples=random.randint(1, 3)), None, {}),
        (gen.samplers.multinomial(), None, {"stop": ["a", "the"]}),
        (gen.samplers.beam_search(2), None, {}),
        (gen.samplers.multinomial(repetition_penalty=1.2), None, {"top_logprobs": 2}),
        (gen.samplers.multinomial(top_p=0.9), gen.regex("[a-z ]*"), {}),
    ]
    sampler, output_type, more = random.choice(kinds)
    rows = getattr(sampler, "samples", 1) * getattr(sampler, "beams", 1)
    room = random.choice([None, None, 2, 5])
    options = Options(
        admit_tokens=random.choice([4096, 150, 64]),
        max_batch_tokens=None if room is None else room * rows * (max(map(len, prompts)) + 20),
    )
    settings = {"sampler": sampler, "seed": [*range(len(prompts))], "max_new_tokens": limits, **more}
    return Case(prompts, output_type, settings, options)


def run_case(model: Any, case: Case) -> list[list[gen.Completion]]:
    """The completions of each prompt, of one call."""
    call = read_call(model, case.prompts, case.output_type, Settings(**case.settings), details=True)
    jobs = [new_job(model, request) for request in call.requests]
    run_all(model, jobs, case.options)
    return [job.completions() for job in jobs]


def differences(model: Any, case: Case) -> Iterator[str]:
    """Each text of a case that is not that of a call of its own, with where they part."""
    with nothing_shared():
        alone = [run_case(model, case.alone(number)) for number in range(len(case.prompts))]
    for number, ([wanted], found) in enumerate(zip(alone, run_case(model, case), strict=True)):
        for one, other in zip(wanted, found, strict=True):
            if (one.token_ids, one.finish_reason) != (other.token_ids, other.finish_reason):
                yield f"prompt {number}, {other.cached_tokens} tokens not read: {one.token_ids}, {other.token_ids}"


def check_texts(model: Any, cases: int) -> dict[str, int]:
    """How many texts of random calls differ from those of calls of their own; each is printed."""
    counts = {"cases": cases, "texts": 0, "with shared tokens": 0, "different": 0}
    for seed in range(cases):
        case = random_case(seed, 1900)
        for text in differences(model, case):
            print(f"case {seed}: {text}")
            counts["different"] += 1
        made = [one for own in run_case(model, case) for one in own]
        counts["texts"] += len(made)
        counts["with shared tokens"] += sum(one.cached_tokens > 0 for one in made)
    return counts


def measure(model: Any, count: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of each program, in turns."""
    random = Random(0)
    top = min(model.vocab_size, model.tokenizer.vocab_size)

    def some(tokens: int) -> list[int]:
        return [random.randrange(10, top) for _ in range(tokens)]

    head = some(SHARED)
    cases = {"600 shared": [head + some(OWN) for _ in range(count)]}
    cases["nothing shared"] = [some(SHARED + OWN) for _ in range(max(2, count // 8))]
    rows = []
    for name, prompts in cases.items():
        programs: dict[str, Callable[[], Any]] = {
            "gen": partial(ours, model, prompts),
            "reading each": partial(reading_each, model, prompts),
        }
        if name == "600 shared":
            programs["a copied cache"] = partial(copied_cache, model.hf_model, prompts)
            programs["a repeated cache"] = partial(repeated_cache, model.hf_model, prompts)
        seconds: dict[str, list[float]] = {program: [] for program in programs}
        for _ in range(rounds):
            for program, run in programs.items():
                begin = thread_time()
                run()
                seconds[program].append(thread_time() - begin)
        for program in programs:
            told = spread(seconds[program])
            rows.append(
                {
                    "prompts": name,
                    "program": program,
                    "seconds": round(told.median, 2),
                    "of gen's": round(ratio(seconds["gen"], seconds[program]), 3),
                }
            )
    return rows


def ours(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    made = gen.generate(
        model, prompts, sampler=gen.samplers.greedy(), max_new_tokens=NEW, eos_token_id=[], details=True
    )
    model.release()
    return [one.token_ids for one in made]


def reading_each(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    with nothing_shared():
        return ours(model, prompts)


def _read_head(hf_model: Any, prompts: list[list[int]]) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache(config=hf_model.config)
    with torch.inference_mode():
        hf_model(torch.tensor([prompts[0][:SHARED]]), past_key_values=cache, logits_to_keep=1)
    return cache


def _continue(hf_model: Any, token_ids: list[list[int]], cache: Any) -> list[list[int]]:
    ids = torch.tensor(token_ids)
    made = hf_model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        pad_token_id=0,
    )
    return [row[len(token_ids[0]) :] for row in made.tolist()]


def copied_cache(hf_model: Any, prompts: list[list[int]]) -> list[list[int]]:
    head = _read_head(hf_model, prompts)
    return [_continue(hf_model, [prompt], copy.deepcopy(head))[0] for prompt in prompts]


def repeated_cache(hf_model: Any, prompts: list[list[int]]) -> list[list[int]]:
    head, made = _read_head(hf_model, prompts), []
    for first in range(0, len(prompts), REPEATED):
        batch = prompts[first : first + REPEATED]
        cache = copy.deepcopy(head)
        cache.batch_repeat_interleave(len(batch))
        made += _continue(hf_model, batch, cache)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help='a directory, a Hub id, or "demo"')
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, help="compare the texts of so many random calls instead")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = gen.load(arguments.model, device="cpu", dtype="float32")
    report: dict[str, Any] = {"machine": machine(), "model": Path(arguments.model).name}
    if arguments.texts:
        report["texts"] = check_texts(model, arguments.texts)
    else:
        report["rows"] = measure(model, arguments.prompts, arguments.rounds)
    print(json.dumps(report, indent=1))
    if arguments.json:
        write_json(arguments.json, report)


if __name__ == "__main__":
    main()
