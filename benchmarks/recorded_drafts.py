"""What a text that was made before saves as the draft of the next one, and that no text changes.

    python -m benchmarks.recorded_drafts --model models/SmolLM2-135M-Instruct
    python -m benchmarks.recorded_drafts --job 8 32

Texts of 200 tokens, one at a time, greedy and drawn, in turns, in CPU seconds of one thread for the whole call: without
a draft, with the text itself, with one that is right up to its 100th token, and with wrong ones: random tokens, and the
text of another prompt.

`--job` runs jobs of 200 rows instead, with so many rows at once: first with old prompts, then with 5 % of them changed,
without drafts and with the old job's texts. CPU seconds are those of the worker, its start included; the parts of both
jobs must be equal byte for byte.
"""

import json
import resource
import tempfile
from collections.abc import Sequence
from functools import partial
from operator import truediv
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any

import gen
from benchmarks.measuring import REAL, interleave, publish, read_arguments, span
from benchmarks.speculation import CASES

NEW, HALF = 200, 100
ROWS, CHANGED, ROW_TOKENS = 200, 10, 64
PROMPTS = [*CASES["open chat"], "Describe how bees find their way home."]
THINGS = ("rivers", "bridges", "clocks", "maps", "lamps", "trains", "stones", "birds", "ships", "gardens")
PLACES = ("Norway", "Peru", "Japan", "Kenya", "Canada", "India", "Spain", "Egypt", "Chile", "Poland")
SETTINGS: dict[str, Any] = {"chat": True, "max_new_tokens": NEW, "eos_token_id": [], "seed": 7}
SAMPLERS = {"greedy": gen.samplers.greedy(), "temperature 0.8": gen.samplers.multinomial(temperature=0.8, top_p=0.95)}


def measure(model: Any, prompts: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """The time with each draft, over that without one, by sampler: medians over prompts and rounds."""
    found, random = [], Random(0)
    for name, sampler in SAMPLERS.items():
        settings: dict[str, Any] = {"sampler": sampler, **SETTINGS}
        texts = [gen.generate(model, prompt, details=True, **settings) for prompt in prompts]
        ratios: dict[str, list[float]] = {}
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            junk = random.choices(range(1000, model.tokenizer.vocab_size), k=NEW)
            drafts = {
                "none": None,
                "unchanged": text,
                "as a str": text.text,
                "right up to its 100th token": [*text.token_ids[:HALF], *junk[HALF:]],
                "random tokens": junk,
                "another text": texts[number - 1],
            }

            def same(draft: Any, prompt: str = prompt, text: Any = text, settings: Any = settings) -> None:
                made = gen.generate(model, prompt, details=True, draft=draft, **settings)
                assert made.token_ids == text.token_ids, f"the draft {draft} has changed the text"

            cases = {kind: partial(same, draft) for kind, draft in drafts.items()}
            seconds = interleave(cases, rounds, clock=thread_time, warm=0)
            for kind, taken in seconds.items():
                ratios.setdefault(kind, []).extend(map(truediv, taken, seconds["none"]))
        del ratios["none"]
        for kind, each in ratios.items():
            found.append({"sampler": name, "draft": kind, "of plain": span("median", each, ends=("least", "most"))})
    return found


def job_prompts(changed: bool) -> list[str]:
    """The prompts of the rows; every twentieth one may be changed."""
    names = [f"{thing} in {place}" for thing in THINGS for place in PLACES]
    prompts = [f"{verb} the {name}." for verb in ("Describe", "Tell a story about") for name in names]
    every = ROWS // CHANGED
    return [f"In short, {one}" if changed and n % every == 7 else one for n, one in enumerate(prompts)]


def measure_job(path: str, rows: int) -> dict[str, Any]:
    """The CPU seconds of a job with the old texts as drafts, over those of the same job without drafts."""
    with tempfile.TemporaryDirectory() as place:
        folder, taken = Path(place), {}

        def run(out: str, changed: bool, drafts: str | None = None) -> bytes:
            lines = [{"id": f"row {n}", "prompt": one} for n, one in enumerate(job_prompts(changed))]
            name = folder / f"{out}.jsonl"
            name.write_text("".join(json.dumps(line) + "\n" for line in lines))
            begin = resource.getrusage(resource.RUSAGE_CHILDREN)
            report = gen.run_batch(
                name,
                folder / out,
                model=path,
                batch_size=rows,
                part_rows=ROWS,
                max_new_tokens=ROW_TOKENS,
                chat=True,
                seed=1,
                drafts=None if drafts is None else folder / drafts,
                progress=False,
            )
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken[out] = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
            return b"".join(part.read_bytes() for part in report.parts)

        run("old", False)
        plain = run("plain", True)
        equal = run("drafted", True, "old") == plain
    seconds = {name: round(one, 1) for name, one in taken.items()}
    return {"rows": rows, "seconds": seconds, "of plain": round(taken["drafted"] / taken["plain"], 3), "equal": equal}


def main() -> None:
    given = read_arguments(
        __doc__, model=str(REAL), rounds=2, prompts=(len(PROMPTS), "how many"), job=([], "rows at once, of each job")
    )
    if given.job:
        found = [measure_job(given.model, rows) for rows in given.job]
    else:
        model = gen.load(given.model, device="cpu", dtype="float32")
        found = measure(model, PROMPTS[: given.prompts], given.rounds)
    publish(given, results=found)


if __name__ == "__main__":
    main()
