"""What a decode step costs, against transformers.generate and bare forwards, and whether gen's goals are met.

    python -m benchmarks.decode
    python -m benchmarks.decode --questions demo real --device cuda:1

The cases of a question run in turn, round by round, after one run of each to warm up; a ratio is the median of the
rounds' ratios. On a CPU with one thread times are CPU time of the thread, else wall time. Texts have a fixed length.
transformers uses its dynamic cache and the same way of sampling; "bare" is the model's forwards over gen's rows and
nothing else. gen keeps its rows from call to call. Only the question "first" measures each time in a fresh process, in
which gen has loaded the model and both programs are imported.

    demo        the demo model, sampled and greedy
    long        900 new tokens
    limit       20 tokens under a limit of 2048
    vocabulary  a tiny Llama with random weights and 49152 tokens
    real        SmolLM2-135M-Instruct as `make real` leaves it, or random weights of that shape, greedy
    first       the first call of a process
    exact       the real model with exact=True, against gen without
    context     steps over long contexts, and over rows of unlike lengths: a Llama of SmolLM2's shape, greedy, whose
                caches hold random keys and values; only steps are timed. A batch and an engine with one long row are
                also compared with ones without it
"""

import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.context import WARM, engine_steps, filled_model, our_steps, their_steps
from benchmarks.measuring import (
    REAL,
    clock_for,
    interleave,
    machine,
    markdown_table,
    read_arguments,
    spread,
    write_json,
)
from benchmarks.programs import Program, bare, ours, some_prompts, theirs
from benchmarks.random_model import random_model
from gen.models.transformers.model import TransformersModel
from gen.samplers import Sampler

LONG, SHORT, LIMIT = 900, 20, 2048  # how many tokens
COLUMNS, MORE, FEW = 4096, 8000, 100  # columns of a context
STEPS = 6  # that are timed together
OURS: dict[str, Sampler] = {"sampled": gen.samplers.multinomial(), "greedy": gen.samplers.greedy()}
THEIRS: dict[str, dict[str, Any]] = {"sampled": {"do_sample": True, "top_k": 0}, "greedy": {"do_sample": False}}


@dataclass(frozen=True)
class Answer:
    """The time of one of gen's cases and of its peer; `step` and `peer_step` are in microseconds."""

    question: str
    batch: int
    case: str
    peer: str
    goal: float
    measured: float
    lowest: float
    highest: float
    step: float
    peer_step: float

    @property
    def met(self) -> bool:
        return self.measured <= self.goal


def measure(given: Namespace, cases: dict[str, Program]) -> dict[str, list[float]]:
    return interleave(cases, given.rounds, clock=clock_for(given.device, given.threads))


def ask_demo(given: Namespace) -> Iterator[Answer]:
    model = _demo(given)
    for batch in given.batch:
        prompts, tokens = some_prompts(batch), given.new_tokens
        cases = {f"gen {name}": ours(model, prompts, sampler, tokens) for name, sampler in OURS.items()}
        cases |= {f"transformers {name}": theirs(model, prompts, tokens, **how) for name, how in THEIRS.items()}
        seconds = measure(given, cases | {"bare": bare(model, prompts, tokens)})
        for name, goal in (("sampled", 0.85), ("greedy", 1.0)):
            yield _answer("demo", batch, f"gen {name}", f"transformers {name}", goal, seconds, tokens)
            yield _answer("demo", batch, f"gen {name}", "bare", 1.15, seconds, tokens)


def ask_long(given: Namespace) -> Iterator[Answer]:
    yield from _against_transformers("long", _demo(given), given, [1, 8], LONG, ["sampled", "greedy"], 0.8)


def ask_limit(given: Namespace) -> Iterator[Answer]:
    model, limit = _demo(given), LIMIT
    model.context_length = model.hf_model.config.max_position_embeddings = 2 * limit  # it was trained for fewer tokens
    for batch in (1, 8):
        prompts = some_prompts(1) * batch
        text = gen.generate(
            model, prompts[0], sampler=gen.samplers.greedy(), max_new_tokens=limit, eos_token_id=[], details=True
        )
        made = next(place for place in range(SHORT, limit) if text.token_ids[place] not in text.token_ids[:place])
        ends: dict[str, Any] = {"eos_token_ids": text.token_ids[made : made + 1], "made": made}
        cases = {
            "gen greedy": ours(model, prompts, OURS["greedy"], limit, **ends),
            "transformers greedy": theirs(model, prompts, limit, **THEIRS["greedy"], **ends),
        }
        yield _answer("limit", batch, "gen greedy", "transformers greedy", 1.0, measure(given, cases), made)


def ask_vocabulary(given: Namespace) -> Iterator[Answer]:
    model = random_model(49_152, device=given.device)
    for batch in given.batch:
        prompts, tokens = some_prompts(batch), given.new_tokens
        cases = {
            "gen sampled": ours(model, prompts, OURS["sampled"], tokens),
            "transformers sampled": theirs(model, prompts, tokens, **THEIRS["sampled"]),
            "bare": bare(model, prompts, tokens),
        }
        seconds = measure(given, cases)
        yield _answer("vocabulary", batch, "gen sampled", "bare", 1.15, seconds, tokens)
        yield _answer("vocabulary", batch, "gen sampled", "transformers sampled", 0.85, seconds, tokens)


def ask_real(given: Namespace) -> Iterator[Answer]:
    yield from _against_transformers("real", _real(given), given, [1, 8], given.new_tokens, ["greedy"], 0.97)


def ask_first(given: Namespace) -> Iterator[Answer]:
    for batch in (1, 8):
        for name in OURS:
            cases = {f"{program} {name}": _first(program, name, batch, given) for program in ("gen", "transformers")}
            seconds: dict[str, list[float]] = {case: [] for case in cases}
            for _ in range(given.rounds):
                for case, run in cases.items():
                    seconds[case].append(run())
            yield _answer("first", batch, f"gen {name}", f"transformers {name}", 1.15, seconds, given.new_tokens)


def _first(program: str, name: str, batch: int, given: Namespace) -> Callable[[], float]:
    """Measures a first call, each time in a process of its own."""

    def run() -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(first_call, program, name, batch, given).result()

    return run


def first_call(program: str, name: str, batch: int, given: Namespace) -> float:
    """Seconds of this process's first call, after the model is loaded."""
    torch.set_num_threads(given.threads)
    model, prompts, clock = _demo(given), some_prompts(batch), clock_for(given.device, given.threads)
    if program == "gen":
        run = ours(model, prompts, OURS[name], given.new_tokens)
    else:
        run = theirs(model, prompts, given.new_tokens, **THEIRS[name])
    begin = clock()
    run()
    return clock() - begin


def ask_exact(given: Namespace) -> Iterator[Answer]:
    model, tokens = _real(given), given.new_tokens
    for batch, goal in ((1, 1.7), (8, 1.05)):
        prompts = some_prompts(batch)
        cases = {
            name: ours(model, prompts, OURS["greedy"], tokens, exact=exact, speculate=False)
            for name, exact in (("gen greedy, exact", True), ("gen greedy", False))
        }
        yield _answer("exact", batch, "gen greedy, exact", "gen greedy", goal, measure(given, cases), tokens)


def ask_context(given: Namespace) -> Iterator[Answer]:
    model = filled_model(random_model(49_152, "135m", device=given.device, context=4 * MORE))
    for lengths, case, goal in (
        ([COLUMNS], f"gen {COLUMNS} columns", 0.75),
        ([MORE], f"gen {MORE} columns", 0.62),
        ([COLUMNS] * 8, f"gen {COLUMNS} columns", 0.7),
        ([COLUMNS - 96] + [FEW] * 7, f"gen 7 of {FEW}, one of {COLUMNS - 96}", 0.3),
    ):
        with our_steps(model, lengths, STEPS) as (run, rows):
            theirs = their_steps(model, rows, [length + WARM for length in lengths], STEPS)
            yield _answer(
                "context",
                len(lengths),
                case,
                "transformers",
                goal,
                measure(given, {case: run, "transformers": theirs}),
                STEPS,
            )
        del run, rows, theirs
        model.release()
    ragged, even = f"gen 15 of {FEW}, one of {MORE}", f"gen 16 of {FEW}"
    lengths = [MORE] + [FEW] * 15
    with our_steps(model, [FEW] * 16, STEPS) as (short, _), our_steps(model, lengths, STEPS) as (long, _):
        yield _answer("context", 16, ragged, even, 2.0, measure(given, {ragged: long, even: short}), STEPS)
    model.release()
    seconds = {
        f"{case}, engine": engine_steps(model, each, STEPS, given.rounds)
        for case, each in ((ragged, lengths), (even, [FEW] * 16))
    }
    yield _answer("context", 16, f"{ragged}, engine", f"{even}, engine", 2.0, seconds, STEPS)


QUESTIONS: dict[str, Callable[[Namespace], Iterator[Answer]]] = {
    "demo": ask_demo,
    "long": ask_long,
    "limit": ask_limit,
    "vocabulary": ask_vocabulary,
    "real": ask_real,
    "first": ask_first,
    "exact": ask_exact,
    "context": ask_context,
}


def _real(given: Namespace) -> TransformersModel:
    if not (given.real / "config.json").exists():
        return random_model(49_152, "135m", device=given.device)
    model = gen.load(given.real, device=given.device, dtype="float32")
    assert isinstance(model, TransformersModel)  # tells mypy
    return model


def _demo(given: Namespace) -> TransformersModel:
    model = gen.load("demo", device=given.device)
    assert isinstance(model, TransformersModel)  # tells mypy
    return model


def _against_transformers(
    question: str,
    model: TransformersModel,
    given: Namespace,
    sizes: Sequence[int],
    tokens: int,
    names: Sequence[str],
    goal: float,
) -> Iterator[Answer]:
    for batch in sizes:
        prompts = some_prompts(batch)
        for name in names:
            cases = {
                f"gen {name}": ours(model, prompts, OURS[name], tokens),
                f"transformers {name}": theirs(model, prompts, tokens, **THEIRS[name]),
            }
            seconds = measure(given, cases)
            yield _answer(question, batch, f"gen {name}", f"transformers {name}", goal, seconds, tokens)


def _answer(
    question: str, batch: int, case: str, peer: str, goal: float, seconds: dict[str, list[float]], tokens: int
) -> Answer:
    ratios = spread([mine / other for mine, other in zip(seconds[case], seconds[peer], strict=True)])
    step, peer_step = (1e6 * spread(seconds[name]).median / tokens for name in (case, peer))
    return Answer(question, batch, case, peer, goal, ratios.median, ratios.fastest, ratios.slowest, step, peer_step)


def main() -> None:
    given = read_arguments(
        __doc__,
        questions={"nargs": "+", "default": [*QUESTIONS], "choices": [*QUESTIONS]},
        device=("cpu", "such as cuda:1"),
        batch=([1, 8, 32], 'for "demo" and "vocabulary"'),
        new_tokens=64,
        rounds=7,
        threads=(1, "torch's threads on the CPU"),
        real=(REAL, "the folder of the real model"),
    )
    answers: list[Answer] = []
    for question in given.questions:
        for answer in QUESTIONS[question](given):
            answers.append(answer)
            print(_row(answer), flush=True)
    print(f"\n{markdown_table([_row(answer) for answer in answers])}\n")
    missed = [answer for answer in answers if not answer.met]
    print(f"{len(answers) - len(missed)} of {len(answers)} goals met")
    if given.json:
        write_report(given.json, answers, given)


def write_report(path: Path, answers: Sequence[Answer], given: Namespace) -> None:
    """Write the answers. Those to other questions stay in the file if they are of the same machine and versions."""
    load = round(os.getloadavg()[0], 1)  # how many programs, these included, wanted a core in the last minute
    how = {"rounds": given.rounds, "new_tokens": given.new_tokens, "device": given.device, "load": load}
    found = [{name: _rounded(value) for name, value in asdict(answer).items()} for answer in answers]
    rows: list[dict[str, Any]] = [row | {"met": answer.met} | how for row, answer in zip(found, answers, strict=True)]
    here, before = machine(), json.loads(path.read_text()) if path.exists() else {}
    others = before.get("answers", []) if before.get("machine") == here else []
    asked = [answer.question for answer in answers]
    rows += [row for row in others if row["question"] not in asked]
    rows.sort(key=lambda row: list(QUESTIONS).index(row["question"]))
    write_json(path, {"machine": here, "answers": rows})


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


def _row(answer: Answer) -> dict[str, object]:
    return {
        "question": answer.question,
        "batch": answer.batch,
        "time of": answer.case,
        "against": answer.peer,
        "goal": answer.goal,
        "measured": round(answer.measured, 3),
        "from": round(answer.lowest, 3),
        "to": round(answer.highest, 3),
        "us a step": round(answer.step),
        "peer's": round(answer.peer_step),
        "met": "yes" if answer.met else "no",
    }


if __name__ == "__main__":
    main()
