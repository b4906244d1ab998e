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

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

import gen
from benchmarks.context import WARM, engine_steps, filled_model, our_steps, their_steps
from benchmarks.measuring import REAL, clock_for, described, interleave, publish, ratios, read_arguments, span
from benchmarks.programs import Program, bare, ours, some_prompts, theirs
from benchmarks.random_model import random_model
from gen.models.transformers.model import TransformersModel
from gen.samplers import Sampler

LONG, SHORT, LIMIT = 900, 20, 2048  # how many tokens
COLUMNS, MORE, FEW = 4096, 8000, 100  # columns of a context
STEPS = 6  # that are timed together
OURS: dict[str, Sampler] = {"sampled": gen.samplers.multinomial(), "greedy": gen.samplers.greedy()}
THEIRS: dict[str, dict[str, Any]] = {"sampled": {"do_sample": True, "top_k": 0}, "greedy": {"do_sample": False}}


Goal = tuple[str, str, float]
"""A case, its peer, and the ratio of their times at most."""
Answer = dict[str, Any]


def ask_demo(given: Namespace) -> Iterator[Answer]:
    goals = [
        ("gen sampled", "transformers sampled", 0.85),
        ("gen sampled", "bare", 1.15),
        ("gen greedy", "transformers greedy", 1.0),
        ("gen greedy", "bare", 1.15),
    ]
    return compared(given, "demo", _demo(given), given.batch, given.new_tokens, goals)


def ask_long(given: Namespace) -> Iterator[Answer]:
    goals = [(f"gen {name}", f"transformers {name}", 0.8) for name in OURS]
    return compared(given, "long", _demo(given), [1, 8], LONG, goals)


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
        yield _answer("limit", batch, ("gen greedy", "transformers greedy", 1.0), measure(given, cases), made)


def ask_vocabulary(given: Namespace) -> Iterator[Answer]:
    goals = [("gen sampled", "bare", 1.15), ("gen sampled", "transformers sampled", 0.85)]
    model = random_model(49_152, device=given.device)
    return compared(given, "vocabulary", model, given.batch, given.new_tokens, goals)


def ask_real(given: Namespace) -> Iterator[Answer]:
    goals = [("gen greedy", "transformers greedy", 0.97)]
    return compared(given, "real", _real(given), [1, 8], given.new_tokens, goals)


def ask_exact(given: Namespace) -> Iterator[Answer]:
    model = _real(given)
    for batch, goal in ((1, 1.7), (8, 1.05)):
        goals = [("gen greedy, exact", "gen greedy", goal)]
        yield from compared(given, "exact", model, [batch], given.new_tokens, goals, speculate=False)


def compared(
    given: Namespace,
    question: str,
    model: TransformersModel,
    batches: Sequence[int],
    tokens: int,
    goals: Sequence[Goal],
    **how: Any,
) -> Iterator[Answer]:
    """Answers for each number of texts: all cases of the goals take turns. `how` is of gen's calls."""
    for batch in batches:
        names, prompts = {name: None for *pair, _ in goals for name in pair}, some_prompts(batch)
        seconds = measure(given, {name: _program(model, prompts, tokens, name, **how) for name in names})
        for goal in goals:
            yield _answer(question, batch, goal, seconds, tokens)


def measure(given: Namespace, cases: dict[str, Program]) -> dict[str, list[float]]:
    return interleave(cases, given.rounds, clock=clock_for(given.device, given.threads))


def _program(model: TransformersModel, prompts: list[str], tokens: int, case: str, **how: Any) -> Program:
    """What runs a case by its name, such as "gen greedy, exact"."""
    if case == "bare":
        return bare(model, prompts, tokens)
    program, name = case.removesuffix(", exact").split()
    if program == "transformers":
        return theirs(model, prompts, tokens, **THEIRS[name])
    return ours(model, prompts, OURS[name], tokens, exact=case.endswith("exact"), **how)


def ask_first(given: Namespace) -> Iterator[Answer]:
    for batch in (1, 8):
        for name in OURS:
            seconds: dict[str, list[float]] = {f"{program} {name}": [] for program in ("gen", "transformers")}
            for _ in range(given.rounds):
                for case, taken in seconds.items():
                    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                        taken.append(pool.submit(first_call, case, batch, given).result())
            yield _answer("first", batch, (*seconds, 1.15), seconds, given.new_tokens)  # type: ignore[arg-type]


def first_call(case: str, batch: int, given: Namespace) -> float:
    """Seconds of this process's first call, after the model is loaded."""
    torch.set_num_threads(given.threads)
    run, clock = (
        _program(_demo(given), some_prompts(batch), given.new_tokens, case),
        clock_for(given.device, given.threads),
    )
    begin = clock()
    run()
    return clock() - begin


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
            seconds = measure(given, {case: run, "transformers": theirs})
            yield _answer("context", len(lengths), (case, "transformers", goal), seconds, STEPS)
        del run, rows, theirs
        model.release()
    ragged, even = f"gen 15 of {FEW}, one of {MORE}", f"gen 16 of {FEW}"
    lengths = [MORE] + [FEW] * 15
    with our_steps(model, [FEW] * 16, STEPS) as (short, _), our_steps(model, lengths, STEPS) as (long, _):
        seconds = measure(given, {ragged: long, even: short})
        yield _answer("context", 16, (ragged, even, 2.0), seconds, STEPS)
    model.release()
    seconds = {
        f"{case}, engine": engine_steps(model, each, STEPS, given.rounds)
        for case, each in ((ragged, lengths), (even, [FEW] * 16))
    }
    yield _answer("context", 16, (f"{ragged}, engine", f"{even}, engine", 2.0), seconds, STEPS)


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


def _answer(question: str, batch: int, goal: Goal, seconds: dict[str, list[float]], tokens: int) -> Answer:
    """The time of one of gen's cases by that of its peer; steps are in microseconds."""
    case, peer, most = goal
    step, peer_step = (round(1e6 * median(seconds[name]) / tokens) for name in (case, peer))
    names = {"question": question, "batch": batch, "case": case, "peer": peer, "goal": most}
    found = ratios(seconds[case], seconds[peer])
    shown = span("measured", found, ends=("lowest", "highest"))
    return {**names, **shown, "step": step, "peer_step": peer_step, "met": median(found) <= most}


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
            print(answer, flush=True)
    load = round(os.getloadavg()[0], 1)  # how many programs, these included, wanted a core in the last minute
    publish(given, arguments=described(given), load=load, answers=answers)
    print(f"{sum(answer['met'] for answer in answers)} of {len(answers)} goals met")


if __name__ == "__main__":
    main()
