"""What steps that read drafts save, against plain steps and transformers' prompt lookup.

    python -m benchmarks.speculation --model models/SmolLM2-135M-Instruct

Greedy texts of 48 tokens, one at a time and eight at a time, in turns, in CPU seconds of one thread from the first
token on. Eight at a time run in several rounds: "rounds" has each, and the median counts. "bare" is what the model's
forwards alone take, of the widths that ran. `benchmarks.cases guesses` and `drafts` compare texts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from statistics import median
from time import thread_time
from typing import Any

import torch
from pydantic import BaseModel

import gen
from benchmarks.measuring import REAL, publish, read_arguments
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


BRIDGE = (
    "The city council of Marlow approved a new bridge on Tuesday. The bridge will cost 14 million pounds "
    "and will carry two lanes of traffic, a cycle path and a footpath. Work begins in March 2027 and takes eighteen "
    "months. Councillor Helen Whitcombe said the bridge would end the long queues on Station Road. Opponents, led by "
    "the Marlow Heritage Society, argue that it will spoil the view of the church. "
)
BEES = (
    "Honey bees tell each other where food is by dancing. A bee that returns performs the waggle dance on the comb. "
    "The angle of the dance gives the direction of the flowers relative to the sun, and its duration the distance. "
    "Karl von Frisch decoded the dance in the 1940s and received the Nobel Prize in 1973. "
)
CODE = '''def total_price(items, tax_rate):
    """Return the total price of all items with tax."""
    total = 0
    for item in items:
        total += item.price * item.quantity
    return total * (1 + tax_rate)


def print_receipt(items, tax_rate):
    """Print a receipt for the items."""
    for item in items:
        print(item.name, item.price, item.quantity)
    print("Total:", total_price(items, tax_rate))
'''
FILE = """{
  "name": "gen-torch",
  "version": "0.1.0",
  "license": "Apache-2.0",
  "dependencies": {
    "torch": ">=2.4",
    "transformers": ">=4.50",
    "pydantic": ">=2.0",
    "tqdm": ">=4.60"
  },
  "scripts": {
    "test": "pytest -q",
    "lint": "ruff check ."
  }
}
"""
PEOPLE = (
    "Maria Keller, 34, is a nurse from Basel. She has two children. Her email is maria.keller@example.org.",
    "Our new colleague Tom Hughes (41) works as an electrician in Leeds; email tom@example.org, no children.",
    "Dr. Aiko Tanaka lives in Osaka. The 52-year-old surgeon has 3 children. Contact: aiko@example.org",
    "Pedro Alvarez, a 29 year old teacher in Madrid, has one child. Write to pedro.alvarez@example.org.",
    "Lena Fischer, 63, baker, Hamburg, 4 children, lena@example.org",
    "Samuel Okoro is an engineer, 37, in Lagos. Email s.okoro@example.org. He has 2 children.",
    "Ines Duarte (45), journalist, Lisbon. One child. ines.duarte@example.org",
    "Viktor Novak, 58, farmer near Brno, five children, v.novak@example.org",
)
CASES: dict[str, tuple[type[BaseModel] | None, list[str]]] = {
    "six-field JSON": (
        Person,
        [
            f"Extract the person as JSON with name, age, city, profession, children and email.\n\n{one}"
            for one in PEOPLE
        ],
    ),
    "quoting": (
        None,
        [
            f"Repeat the following text word for word:\n\n{BRIDGE}",
            f"Quote the sentences about the cost and the critics exactly.\n\n{BRIDGE}",
            f"Copy this text and correct its spelling:\n\n{BEES}",
            f"What does the text say about Karl von Frisch? Quote it.\n\n{BEES}",
        ],
    ),
    "summarising": (
        None,
        [
            f"Summarise the text in three sentences, using its own words.\n\n{BEES}",
            f"Summarise this article:\n\n{BRIDGE}",
            f"Summarise the text in three sentences, using its own words.\n\n{BRIDGE}",
            f"List the facts of this text in its own words:\n\n{BEES}",
        ],
    ),
    "editing": (
        None,
        [
            f"Rename the variable total to amount in this code and print the whole code.\n\n```python\n{CODE}```",
            f"Set the version to 0.2.0 in this JSON and print the whole JSON.\n\n```json\n{FILE}```",
            f"Add type hints to this code and print all of it.\n\n```python\n{CODE}```",
            f"Remove the dependency tqdm from this JSON and print the rest.\n\n```json\n{FILE}```",
        ],
    ),
    "open chat": (
        None,
        [
            "Why is the sky blue?",
            "Tell me a short story about a dragon who is afraid of fire.",
            "What should I cook tonight with eggs and rice?",
            "Explain what a hash table is.",
        ],
    ),
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
        output_type, texts = CASES[name]
        kind = None if output_type is None else gen.compile(model, output_type)
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
    model.hf_model(torch.randint(10, 1000, (count, 160)), past_key_values=cache, logits_to_keep=1)
    seconds = []
    for _ in range(5):
        token_ids = torch.randint(10, 1000, (count, width))
        begin = thread_time()
        model.hf_model(token_ids, past_key_values=cache)
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
