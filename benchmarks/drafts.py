"""What a text that was made before saves as the draft of a new one, over plain steps, and over a job anew.

    python -m benchmarks.drafts --model models/SmolLM2-135M-Instruct
    python -m benchmarks.drafts --model models/SmolLM2-135M-Instruct --job 200

Times are CPU seconds of one thread, in which plain calls and those with drafts take turns, and medians of the rounds'
ratios: one text of 200 tokens whose draft is the same, is the same for 100 tokens, or is another text. `--job` runs a
job of so many rows again after one prompt of 20 was changed, without drafts and with the texts of the old job, loading
included. Texts must be the same with a draft and without, parts too, byte for byte.
"""

import argparse
import json
import os
import resource
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, ratio, spread, write_json
from gen.offline.job import run_batch

TOKENS, SAME = 200, 100
JOB_TOKENS = 64
OTHERS = 20  # one row of so many has another prompt in the new job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", type=int, metavar="ROWS", help="instead, run jobs of so many rows")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 32], help="how many rows of a job run at once")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    if arguments.job:
        rows = [job(arguments.model, arguments.job, at_once) for at_once in arguments.at_once]
    else:
        rows = measure(gen.load(arguments.model, device="cpu"), arguments.rounds)
    print(json.dumps(rows, indent=1))
    report = {"machine": machine(), "model": Path(arguments.model).name, "rows": rows}
    print(json.dumps(report["machine"]))
    if arguments.json:
        write_json(arguments.json, report)


def measure(model: Any, rounds: int) -> list[dict[str, Any]]:
    """CPU seconds without a draft and with each kind."""

    def made(seed: int, draft: Any = None) -> tuple[float, Any]:
        begin = process_time()
        found = gen.generate(
            model,
            f"A story of {seed} sailors:",
            seed=seed,
            max_new_tokens=TOKENS,
            eos_token_id=[],
            details=True,
            speculate="auto" if draft else False,
            draft=draft,
        )
        return process_time() - begin, found

    plain, times, accepted = list[float](), dict[str, list[float]](), dict[str, int]()
    for seed in range(rounds + 1):
        seconds, old = made(seed)
        _, other = made(seed + 1000)
        plain.append(seconds)
        drafts = {
            "the same text": old.token_ids,
            f"the same for {SAME} tokens": old.token_ids[:SAME] + other.token_ids[SAME:],
            "another text": other.token_ids,
        }
        for name, draft in drafts.items():
            seconds, new = made(seed, draft)
            assert new.token_ids == old.token_ids, name
            times.setdefault(name, []).append(seconds)
            accepted[name] = accepted.get(name, 0) + new.accepted
    return [
        {
            "draft": name,
            "time / plain": ratio(found[1:], plain[1:]),  # the first round records steps
            "accepted tokens": accepted[name] // (rounds + 1),
            "plain s": asdict(spread(plain[1:])),
            "s": asdict(spread(found[1:])),
        }
        for name, found in times.items()
    ]


def job(model: str, count: int, at_once: int) -> dict[str, Any]:
    """CPU seconds of a job's processes after one prompt of 20 was changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(prompts: list[str], out: str, drafts: Path | None = None) -> float:
            source = folder / f"{out}.jsonl"
            lines = ({"id": str(number), "prompt": prompt} for number, prompt in enumerate(prompts))
            source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            settings: Any = {"rows": at_once, "seed": 3, "max_new_tokens": JOB_TOKENS, "eos_token_id": []}
            begin = _seconds()
            run_batch(source, folder / out, model=model, devices="cpu", progress=False, drafts=drafts, **settings)
            return _seconds() - begin

        prompts = [f"A story of {number} sailors:" for number in range(count)]
        changed = [f"{prompt} once" if number % OTHERS == 0 else prompt for number, prompt in enumerate(prompts)]
        run(prompts, "old")
        anew, drafted = run(changed, "anew"), run(changed, "drafted", folder / "old")
        parts = [
            {part.name: part.read_bytes() for part in (folder / out).glob("part-*")} for out in ("anew", "drafted")
        ]
        assert parts[0] and parts[0] == parts[1]
    over = ratio([drafted], [anew])
    return {"rows": count, "at once": at_once, "anew s": round(anew, 1), "s": round(drafted, 1), "time / anew": over}


def _seconds() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


if __name__ == "__main__":
    main()
