"""What steps that read drafts save, against plain steps and transformers' prompt lookup.

    python -m benchmarks.speculation --model models/SmolLM2-135M-Instruct

Greedy texts of 48 tokens, one at a time and eight at a time, in turns, in CPU seconds of one thread from the first
token on. Eight at a time run in several rounds: "rounds" has each, and the median counts. "bare" is what the model's
forwards alone take, of the widths that ran. `benchmarks.cases guesses` and `drafts` compare texts.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from pydantic import BaseModel

import gen
from benchmarks.measuring import REAL, for_cache, publish, read_arguments
from gen.loop.replay.recorded import Recorded
from gen.loop.scheduler import Scheduler

NEW = 48
LOOKUP = 8  # tokens that transformers' prompt lookup drafts


class Person(BaseModel):
    name: str
    age: int
    city: str
    profession: str
    children: int
    email: str


_GIVEN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CASES: dict[str, list[str]] = {
    "six-field JSON": [
        f"Extract the person as JSON with name, age, city, profession, children and email.\n\n{one}"
        for one in _GIVEN["prompts"].pop("six-field JSON")
    ],
    **{name: [one.format(**_GIVEN["texts"]) for one in prompts] for name, prompts in _GIVEN["prompts"].items()},
}


@contextmanager
def noted() -> Iterator[Any]:
    """Seconds of all turns of the loop but for the reading of prompts, and how many steps of which shape there are."""
    seen: Any = Counter()  # of floats too
    step, run = Scheduler._step, Recorded.run

    def timed(self: Scheduler) -> None:
        begin = thread_time()
        step(self)
        seen.update(seconds=thread_time() - begin, steps=1)

    def counted(self: Any, count: int, view: int, lengths: Sequence[int] = (), width: int = 1, **how: Any) -> None:
        seen[count, width] += 1
        run(self, count, view, lengths, width, **how)

    Scheduler._step, Recorded.run = timed, counted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Scheduler._step, Recorded.run = step, run  # type: ignore[method-assign]


def measure(model: Any, cases: Sequence[str], batch: int, prompts: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds and steps of each program, in turns."""
    rows = []
    for name in cases:
        texts, kind = CASES[name], gen.compile(model, Person) if "JSON" in name else None
        chosen = (texts * batch)[: prompts * batch]
        programs: dict[str, Any] = {"plain": False, "auto": "auto"}
        if kind is not None:
            programs["forced alone"] = gen.Speculation(prompt=False)
        totals: dict[str, Any] = {program: Counter() for program in programs}
        taken: dict[str, list[float]] = {program: [0.0] * rounds for program in programs}
        peer: Any = Counter()
        bare: dict[tuple[int, int], list[float]] = {}
        groups = [chosen[first : first + batch] for first in range(0, len(chosen), batch)]
        for group, turn in product(groups, range(rounds)):
            ids = {}
            for program, speculate in programs.items():
                with noted() as seen:
                    made = gen.generate(
                        model,
                        group,
                        kind,
                        chat=True,
                        sampler=gen.samplers.greedy(),
                        max_new_tokens=NEW,
                        seed=7,
                        details=True,
                        shorten=True,
                        speculate=speculate,
                    )
                ids[program] = [one.token_ids for one in made]
                totals[program].update(seen)
                taken[program][turn] += seen["seconds"]
                totals[program]["tokens"] += sum(len(one.token_ids) for one in made)
            for shape in {shape for total in totals.values() for shape in total if isinstance(shape, tuple)}:
                if turn == 0 or shape not in bare:
                    bare.setdefault(shape, []).append(bare_seconds(model, *shape))
            assert all(found == ids["plain"] for found in ids.values()), f"{name}: texts differ"
            if batch == 1 and kind is None:
                for lookup in (0, LOOKUP):
                    peer[lookup] += transformers_seconds(model, group[0], lookup)
        for program, total in totals.items():
            forwards = sum(count * median(bare[shape]) for shape, count in total.items() if shape in bare)
            ratios = [round(one / plain, 3) for one, plain in zip(taken[program], taken["plain"], strict=True)]
            rows.append(
                {
                    "text": name,
                    "batch": batch,
                    "program": program,
                    "tokens": total["tokens"] // rounds,
                    "seconds": round(median(taken[program]), 2),
                    "of plain": median(ratios),
                    "steps of plain": round(total["steps"] / totals["plain"]["steps"], 3),
                    "of bare": round(total["seconds"] / forwards, 3),
                    **({"rounds": ratios} if rounds > 1 else {}),
                }
            )
        for lookup, seconds in peer.items():
            program = "transformers" + (", prompt lookup" if lookup else "")
            of_plain = round(seconds / totals["plain"]["seconds"], 3)
            rows.append(
                {"text": name, "batch": 1, "program": program, "seconds": round(seconds, 2), "of plain": of_plain}
            )
    return rows


class _First:
    """Hears of tokens, and notes when the first one after the prompt's came."""

    def __init__(self) -> None:
        self.calls, self.at = 0, 0.0

    def put(self, value: object) -> None:
        self.calls += 1
        if self.calls == 2:  # the prompt is the first
            self.at = thread_time()

    def end(self) -> None:
        """Nothing more comes."""


def transformers_seconds(model: Any, prompt: str, lookup: int) -> float:
    """Seconds of transformers' generate from its first token on."""
    token_ids = torch.tensor(
        [model.tokenizer.encode_plain(model.tokenizer.chat_text([{"role": "user", "content": prompt}]))]
    )
    first = _First()
    more = {"prompt_lookup_num_tokens": lookup} if lookup else {}
    with torch.inference_mode():
        model.hf_model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=NEW,
            do_sample=False,
            streamer=first,
            **more,
        )
    return thread_time() - first.at


@torch.inference_mode()
def bare_seconds(model: Any, count: int, width: int) -> float:
    """Seconds of a forward of the module itself, of so many rows and tokens over as long a cache."""
    from transformers import StaticCache

    cache = StaticCache(config=model.hf_model.config, max_cache_len=256)
    model.hf_model(torch.randint(10, 1000, (count, 160)), **for_cache(cache), logits_to_keep=1)
    seconds = []
    for _ in range(5):
        token_ids = torch.randint(10, 1000, (count, width))
        begin = thread_time()
        model.hf_model(token_ids, **for_cache(cache))
        seconds.append(thread_time() - begin)
    return median(seconds)


def main() -> None:
    given = read_arguments(
        __doc__,
        model=str(REAL),
        prompts=(4, "how many prompts of each kind run alone"),
        rounds=(5, "how often several texts run at a time"),
        batch=[1, 8],
        cases=[*CASES],
    )
    model = gen.load(given.model, device="cpu", dtype="float32")
    results = []
    for batch in given.batch:
        results += measure(model, given.cases, batch, *((given.prompts, 1) if batch == 1 else (1, given.rounds)))
    publish(given, results=results)


if __name__ == "__main__":
    main()
