"""What shared beginnings of prompts save, compared with transformers and a reused cache; and that texts stay the same.

    python -m benchmarks.prefixes --model models/SmolLM2-135M-Instruct
    python -m benchmarks.prefixes --texts 1000

Prompts have 600 shared tokens and 30 of their own, or share nothing; 20 new tokens each, greedy. "gen" reads the shared
tokens once; in "reading each" that is turned off. "a copied cache" reads the shared tokens once with transformers, and
gives a copy of that cache to `generate` for each prompt; "a repeated cache" repeats it for batches of 16. All take
turns, in CPU seconds of one thread. A chat of ten turns goes through an engine that keeps what it has read, and through
one that does not, in CPU seconds of the process.

`--texts` instead runs random calls, and engines with little room for kept texts: trees of shared beginnings, all kinds
of samplers, both engines of constraints, prompts read in parts, salts, pins. Every second case runs on a tiny model of
another architecture, with other kinds of caches. Each text is compared with that of a separate call.
"""

import argparse
import copy
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from time import process_time, thread_time
from typing import Any

import torch

import gen
from benchmarks.architectures.tiny_models import tiny_model, tokenizer
from benchmarks.measuring import machine, ratio, spread, write_json
from benchmarks.prefix_cases import differences, kept_differences, nothing_shared, random_case, run_case

SHARED, OWN, NEW = 600, 30, 20
REPEATED = 16  # prompts in a batch of transformers
ARCHITECTURES = (
    *("llama", "gpt2", "bloom", "mpt", "mixtral", "mistral", "gemma3_text", "gemma3n_text", "llama4_text"),
    *("deepseek_v3", "gpt_neo", "qwen3_next", "falcon_h1", "lfm2", "jamba", "zamba2", "nemotron_h", "bamba"),
)
"""Full, sliding, chunked and latent attention, ALiBi, shared keys, experts, aligned rows, hybrids, recurrent layers."""
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


def check_texts(cases: range) -> dict[str, Any]:
    """How many texts of random calls differ from those of separate calls; each of them is printed."""
    demo = gen.load("demo", device="cpu")
    counts = Counter({"texts": 0, "with shared tokens": 0, "different": 0})
    for seed in cases:
        architecture = ARCHITECTURES[seed // 2 % len(ARCHITECTURES)] if seed % 2 else "demo"
        model = gen.from_transformers(tiny_model(architecture), tokenizer()) if seed % 2 else demo
        vocabulary = 250 if seed % 2 else 1900
        case = random_case(seed, vocabulary)
        found = [one for own in run_case(model, case) for one in own]
        kept = [*kept_differences(model, seed, vocabulary)]
        made = [*found, *(one for one in kept if not isinstance(one, str))]
        for text in [*differences(model, case), *(one for one in kept if isinstance(one, str))]:
            print(f"case {seed}, {architecture}: {text}", flush=True)
            counts["different"] += 1
        counts["texts"] += len(found) + len(kept)
        counts["with shared tokens"] += sum(one.cached_tokens > 0 for one in made)
    return {"cases": f"{cases.start} to {cases.stop - 1}", **counts}


def measure_chat(model: Any, rounds: int) -> list[dict[str, Any]]:
    """Seconds of a chat through an engine that keeps what it has read, and through one that does not."""
    seconds: dict[str, list[float]] = {"kept": [], "reading each turn": []}
    for _ in range(rounds):
        texts = []
        for program, prefix_bytes in zip(seconds, (None, 0), strict=True):
            begin = process_time()
            texts.append(chat(model, prefix_bytes))
            seconds[program].append(process_time() - begin)
        assert texts[0] == texts[1]
    kept, each = seconds.values()
    return [
        {
            "prompts": "a chat of 10 turns",
            "program": program,
            "seconds": round(spread(taken).median, 2),
            "of gen's": round(ratio(kept, taken), 3),
        }
        for program, taken in zip(seconds, (kept, each), strict=True)
    ]


def chat(model: Any, prefix_bytes: int | None) -> list[str]:
    messages, texts = [{"role": "system", "content": RULES * 4}], []
    with gen.Engine(model, rows=4, prefix_bytes=prefix_bytes) as engine:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            texts.append(engine.generate(messages, sampler=gen.samplers.greedy(), max_new_tokens=12))
            messages.append({"role": "assistant", "content": texts[-1]})
    model.release()
    return texts


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
    parser.add_argument("--texts", type=int, help="instead, compare the texts of this many random calls")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of these calls")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine()}
    if arguments.texts:
        report["texts"] = check_texts(range(arguments.first, arguments.first + arguments.texts))
    else:
        model = gen.load(arguments.model, device="cpu", dtype="float32")
        report["model"] = Path(arguments.model).name
        report["rows"] = measure_chat(model, arguments.rounds) + measure(model, arguments.prompts, arguments.rounds)
    print(json.dumps(report, indent=1))
    if arguments.json:
        write_json(arguments.json, report)


if __name__ == "__main__":
    main()
