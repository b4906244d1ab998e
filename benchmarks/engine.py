"""What a text through an engine costs, against `gen.generate`, and how long rows wait while a long prompt is read.

    python -m benchmarks.engine
    python -m benchmarks.engine --rounds 11 --json FILE

"cost": the CPU time of the whole process for some texts of the demo model, which are submitted one by one, divided by
that of one `gen.generate` of them; the two take turns, and a ratio is the median of the rounds'. The texts are taken
whole, or read piece by piece while they grow.

"gaps": 31 texts grow while a prompt of 900 tokens joins. A gap is the CPU time of the thread between two tokens of
these texts while the prompt is read, divided by the median one before. The prompt joins several times: the first time
in a new process, in rows that are new, which grow and whose steps are recorded anew, and in rows that are there. Beside
these "never" has as many turns of the same texts in which no prompt joins.

What `gen` does in a turn comes in each join, and what else the machine does, in some. So "largest gap" is the largest
of the turns' medians over the joins; "largest of all" and "above the goal" look at each single gap.
"""

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

import gen
from benchmarks.measuring import interleave, publish, ratios, read_arguments, span
from benchmarks.programs import Program, some_prompts
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.requests.request import Request

GOAL, GAP_GOAL = 1.1, 2.5
ROWS, LONG, BEFORE = 32, 900, 40
Row = dict[str, Any]


def costs(model: Any, rounds: int, texts: Sequence[int], tokens: Sequence[int]) -> Iterator[Row]:
    """A row for each number of texts and of tokens, and each way to take them."""
    for count in texts:
        for most in tokens:
            with gen.Engine(model, rows=ROWS) as engine:
                cases = {
                    "generate": _alone(model, count, most),
                    "whole": _through(model, engine, count, most, streamed=False),
                    "piece by piece": _through(model, engine, count, most, streamed=True),
                }
                seconds = interleave(cases, rounds, clock=time.process_time, warm=3)  # what is recorded, is recorded
            for name in ("whole", "piece by piece"):
                yield {
                    "texts": count,
                    "tokens": most,
                    "taken": name,
                    **span("ratio", ratios(seconds[name], seconds["generate"]), ends=("lowest", "highest")),
                    "generate ms": round(1e3 * median(seconds["generate"]), 1),
                    "goal": GOAL,
                }


def _alone(model: Any, count: int, tokens: int) -> Program:
    prompts, seeds = some_prompts(count), list(range(count))
    return lambda: gen.generate(model, prompts, max_new_tokens=tokens, seed=seeds, eos_token_id=[])


def _through(model: Any, engine: gen.Engine, count: int, tokens: int, *, streamed: bool) -> Program:
    prompts = some_prompts(count)

    def run() -> None:
        streams = [
            engine.submit(prompt, max_new_tokens=tokens, seed=seed, eos_token_id=[])
            for seed, prompt in enumerate(prompts)
        ]
        for stream in streams:
            if streamed:
                for _ in stream:
                    pass
            assert len(stream.completion().token_ids) == tokens
        while (rows := model.idle.take()) is None:  # the engine gives them back, or `generate` would record its own
            time.sleep(1e-4)
        model.idle.put(rows)

    return run


def gaps(model: Any, rounds: int, long: int = LONG) -> Iterator[Row]:
    """A row for each way in which a long prompt joins, and one for the same texts without it."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as new_process:
        first = [*new_process.map(_first_gaps, [long] * rounds)]
    gc.collect()
    gc.freeze()  # or Python looks through all of torch's objects in some turn
    kinds: dict[str, list[list[float]]] = {"first": first, "with new rows": [], "later": [], "never": []}
    for _ in range(rounds):
        model.release()
        kinds["with new rows"].append(_gaps(model, long))
        kinds["later"].append(_gaps(model, long))
        kinds["never"].append(_gaps(model, 0, len(kinds["later"][-1])))
    for name, some in kinds.items():
        of_turns = [*zip(*some, strict=False), [one[-1] for one in some]]
        each = [gap for one in some for gap in one]
        yield {
            "prompt joins": name,
            "times": len(some),
            "parts": statistics.median(map(len, some)),
            "median gap": round(statistics.median(each), 2),
            "largest gap": round(max(map(statistics.median, of_turns)), 2),
            "largest of all": round(max(each), 2),
            "above the goal": sum(gap > GAP_GOAL for gap in each),
            "goal": GAP_GOAL,
        }


def _first_gaps(long: int) -> list[float]:
    """As `_gaps`, in a process that has not run the model yet."""
    torch.set_num_threads(1)
    model = gen.load("demo", device="cpu")
    gc.collect()
    gc.freeze()
    return _gaps(model, long)


def _gaps(model: Any, long: int, turns: int = 0) -> list[float]:
    """The steps that rows wait for each token while a prompt is read, or in so many turns."""
    options = Options(rows=ROWS, admit_tokens=None)
    runner = Runner(model, [_job(model, [1, 2, 3, number], 4 * BEFORE) for number in range(4, ROWS + 3)], options, ROWS)
    with runner, runner.current():
        before = [_advance(runner) for _ in range(BEFORE)]
        step = statistics.median(before[BEFORE // 2 :])
        found = [_advance(runner) / step for _ in range(turns)]
        if long:
            job = _job(model, [4 + number % 900 for number in range(long)], 8)
            runner.add(job)
            while not job.launched:
                found.append(_advance(runner) / step)
        runner.drain()
    return found


def _job(model: Any, prompt_ids: list[int], limit: int) -> Any:
    return new_job(model, Request(prompt_ids=prompt_ids, sampler=gen.samplers.multinomial(), seeds=(0,), limit=limit))


def _advance(runner: Runner) -> float:
    begin = time.thread_time()
    runner.advance()
    return time.thread_time() - begin


def main() -> None:
    given = read_arguments(__doc__, rounds=11, texts=[1, 16, 32], tokens=[32, 200])
    model = gen.load("demo", device="cpu")
    cost = [*costs(model, given.rounds, given.texts, given.tokens)]
    publish(given, rounds=given.rounds, cost=cost, gaps=[*gaps(model, given.rounds)])


if __name__ == "__main__":
    main()
