"""What shared beginnings of prompts save, compared with transformers and a reused cache.

    python -m benchmarks.prefixes --model models/SmolLM2-135M-Instruct

Prompts have 600 shared tokens and 30 of their own, or share nothing; 20 new tokens each, greedy. "gen" reads the shared
tokens once; in "reading each" that is turned off. "a copied cache" reads the shared tokens once with transformers, and
gives a copy of that cache to `generate` for each prompt; "a repeated cache" repeats it for batches of 16. All take
turns, in CPU seconds of one thread. A chat of ten turns goes through an engine that keeps what it has read, and through
one that does not, in CPU seconds of the process. `benchmarks.cases prefixes` compares texts.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import process_time, thread_time
from typing import Any

import torch

import gen
from benchmarks.cases.prefixes import nothing_shared
from benchmarks.measuring import for_cache, interleave, publish, ratio, read_arguments

SHARED, OWN, NEW = 600, 30, 20
REPEATED = 16  # prompts in a batch of transformers
RULES = (
    "You answer the questions of a small museum's guests in one or two short sentences. It opens at nine and closes at "
    "five, and is closed on Mondays. A ticket is ten euros, five for children, and groups of ten pay for nine. "
)
QUESTIONS = (
    "When do you open?",
    "What is a ticket for my son?",
    "And for me?",
    "May I come on Monday?",
    "We are twelve. What do we pay?",
    "Is there a place to eat?",
    "How long does a visit take?",
    "What should we see first?",
    "May I take pictures?",
    "Thank you, and goodbye.",
)


def measure_chat(model: Any, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of a chat through an engine that keeps what it has read, and through one that does not."""
    texts: dict[str, list[str]] = {}

    def case(name: str, prefix_bytes: int | None) -> Callable[[], None]:
        def run() -> None:
            texts[name] = chat(model, prefix_bytes)

        return run

    cases = {"kept": case("kept", None), "reading each turn": case("reading each turn", 0)}
    yield from compared("a chat of 10 turns", cases, rounds, process_time)
    assert texts["kept"] == texts["reading each turn"]


def chat(model: Any, prefix_bytes: int | None) -> list[str]:
    messages, texts = [{"role": "system", "content": RULES * 4}], []
    with gen.Engine(model, rows=4, prefix_bytes=prefix_bytes) as engine:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            texts.append(engine.generate(messages, sampler=gen.samplers.greedy(), max_new_tokens=12))
            messages.append({"role": "assistant", "content": texts[-1]})
    model.release()
    return texts


def measure(model: Any, count: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of each program, in turns."""
    random = Random(0)
    top = min(model.vocab_size, model.tokenizer.vocab_size)

    def some(tokens: int) -> list[int]:
        return [random.randrange(10, top) for _ in range(tokens)]

    head = some(SHARED)
    cases = {"600 shared": [head + some(OWN) for _ in range(count)]}
    cases["nothing shared"] = [some(SHARED + OWN) for _ in range(max(2, count // 8))]
    for name, prompts in cases.items():
        programs: dict[str, Callable[[], Any]] = {
            "gen": partial(ours, model, prompts),
            "reading each": partial(reading_each, model, prompts),
        }
        if name == "600 shared":
            programs["a copied cache"] = partial(copied_cache, model.hf_model, prompts)
            programs["a repeated cache"] = partial(repeated_cache, model.hf_model, prompts)
        yield from compared(name, programs, rounds, thread_time)


def compared(
    prompts: str, programs: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """A row for each program: its seconds, and what share of them the first one takes."""
    seconds = interleave(programs, rounds, clock=clock, warm=0)
    first = next(iter(seconds.values()))
    for program, taken in seconds.items():
        share = round(ratio(first, taken), 3)
        yield {"prompts": prompts, "program": program, "seconds": round(median(taken), 2), "of gen's": share}


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
        hf_model(torch.tensor([prompts[0][:SHARED]]), **for_cache(cache), logits_to_keep=1)
    return cache


def _continue(hf_model: Any, token_ids: list[list[int]], cache: Any) -> list[list[int]]:
    ids = torch.tensor(token_ids)
    made = hf_model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **for_cache(cache),
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
    given = read_arguments(__doc__, model=("demo", 'a directory, a Hub id, or "demo"'), prompts=64, rounds=3)
    model = gen.load(given.model, device="cpu", dtype="float32")
    rows = [*measure_chat(model, given.rounds), *measure(model, given.prompts, given.rounds)]
    publish(given, model=Path(given.model).name, rows=rows)


if __name__ == "__main__":
    main()
