"""Is `gen` right for every architecture of transformers? Tiny random models against their own plain forwards.

    python -m benchmarks.architectures.sweep [--groups decoders vision images encoders] [--only llama] [--json FILE]

decoders: everything that transformers lists as causal language models. vision: models that read images, given only
text. images: those with images. encoders: text encoders, for `gen.embed`. Each runs in a process of its own: a crash or
a hang ends only that one.

The oracle is the model's forward over the whole text so far, repeated for every token, without a cache, padding or
other texts; prompts and new tokens go beyond each window. A text is right if it has the oracle's tokens and
log-probabilities; tolerances are in `benchmarks.architectures.comparisons`. Samples have to be the same alone and in a
batch, and have the oracle's log-probabilities; beams are the oracle's own beam search.

Verdicts: right; refused (a GenError says why); wrong (what differs, or an error from inside); not made (no tiny model).
"""

import json
import multiprocessing
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.architectures.comparisons import (
    DifferenceError,
    ImageComparison,
    Oracle,
    TextComparison,
    VectorComparison,
)
from benchmarks.architectures.image_inputs import each_alone, image_inputs
from benchmarks.architectures.tiny_models import UNSUITED, Group, model_types, tiny_model
from benchmarks.measuring import machine, markdown_table, read_arguments, write_json

GROUPS: tuple[Group, ...] = ("decoders", "vision", "images", "encoders")
VERDICTS = ("right", "refused", "wrong", "not made")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result for one architecture.

    Attributes:
        architecture: the model type, as in config.json.
        model: the class.
        verdict: one of `VERDICTS`.
        reason: what differs, or why not; empty for right.
        error: the largest difference among right results, as a share of the logits' or the vectors' spread.
        tokens: how many different tokens the greedy texts have.
        seconds: of the CPU.
        close_calls: how many tokens were not compared, because rounding decides which one the model chooses.
        cases: the result of each case: "right", or what differs, or why it was refused.
    """

    architecture: str
    model: str = ""
    verdict: str
    reason: str = ""
    error: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    close_calls: int = 0
    cases: dict[str, str] = field(default_factory=dict)


def examine(architecture: str, group: Group) -> Verdict:
    """Make the tiny model and compare; never raises."""
    begin = time.process_time()
    if architecture in UNSUITED:
        return Verdict(architecture=architecture, verdict="not made", reason=UNSUITED[architecture])
    try:
        model = tiny_model(architecture, group)
        inputs = each_alone(image_inputs(model)) if group == "images" else []
        if group in ("decoders", "vision"):
            Oracle(model).logits([1, 2, 3])
    except Exception as error:  # configurations and models fail with errors of every kind
        return Verdict(architecture=architecture, verdict="not made", reason=_said(error))
    name = type(model).__name__
    try:
        if group == "images":
            comparison: Any = ImageComparison(model, inputs)
        else:
            comparison = VectorComparison(model) if group == "encoders" else TextComparison(model)
    except gen.GenError as error:
        return Verdict(architecture=architecture, model=name, verdict="refused", reason=_said(error))
    except Exception as error:
        return Verdict(architecture=architecture, model=name, verdict="wrong", reason=f"at load: {_said(error)}")
    cases: dict[str, str] = {}
    verdicts: dict[str, str] = {}
    for case, run in comparison.cases():
        try:
            run()
            verdicts[case], cases[case] = "right", "right"
        except Exception as error:
            verdicts[case] = "refused" if isinstance(error, gen.GenError) else "wrong"
            cases[case] = _said(error)
    verdict = max(verdicts.values(), key=VERDICTS.index)
    bad = [case for case in cases if verdicts[case] == verdict != "right"]
    return Verdict(
        architecture=architecture,
        model=name,
        verdict=verdict,
        reason=f"{len(bad)} of {len(cases)} cases; {bad[0]}: {cases[bad[0]]}" if bad else "",
        error=comparison.error,
        tokens=len(comparison.tokens),
        close_calls=comparison.close_calls,
        seconds=round(time.process_time() - begin, 1),
        cases=cases,
    )


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, DifferenceError | gen.GenError) else f"{type(error).__name__}: {text}"[:200]


def sweep(
    names: Sequence[str],
    group: Group,
    *,
    jobs: int = 1,
    limit: float = 120.0,
    examiner: Callable[[str, Group], Verdict] = examine,
) -> Iterator[Verdict]:
    """Yield a verdict for each architecture as it comes; each has a process of its own and `limit` seconds."""
    context = multiprocessing.get_context("forkserver")  # its children start with everything imported
    context.set_forkserver_preload(["benchmarks.architectures.comparisons", "benchmarks.architectures.tiny_models"])
    waiting = list(names)
    running: dict[connection.Connection[Any, Any], tuple[str, BaseProcess, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=_run, args=(examiner, name, group, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (name, process, time.monotonic() + limit)
        soonest = min(end for _, _, end in running.values())
        ready = connection.wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
        for receiver, (name, process, end) in list(running.items()):
            if receiver in ready:
                try:
                    yield receiver.recv()
                except EOFError:
                    process.join()
                    reason = f"its process ended with code {process.exitcode}"
                    yield Verdict(architecture=name, verdict="wrong", reason=reason)
            elif time.monotonic() > end:
                yield Verdict(architecture=name, verdict="wrong", reason=f"no answer within {limit:g} s")
            else:
                continue
            process.join(10 if receiver in ready else 0)
            process.kill()
            process.join()
            del running[receiver]


def _run(
    examiner: Callable[[str, Group], Verdict], name: str, group: Group, sender: "connection.Connection[Any, Any]"
) -> None:
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sender.send(examiner(name, group))


def main() -> None:
    given = read_arguments(
        __doc__,
        groups={"nargs": "+", "choices": GROUPS, "default": ["decoders"]},
        only=({"nargs": "+"}, "model types, such as llama or gpt2; default: all"),
        jobs=(1, "how many cases run at once"),
        limit=(120.0, "seconds for each case"),
        markdown=(Path, "write tables there, of what is not right"),
    )
    report: dict[str, object] = {"machine": machine()}
    pages = []
    for group in given.groups:
        names = [name for name in model_types(group) if name in (given.only or [name])]
        verdicts = []
        for verdict in sweep(names, group, jobs=given.jobs, limit=given.limit):
            verdicts.append(verdict)
            print(f"{verdict.architecture:26} {verdict.verdict:9} {verdict.reason}".rstrip(), flush=True)
        verdicts.sort(key=lambda verdict: verdict.architecture)
        counts = Counter(verdict.verdict for verdict in verdicts)
        told = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
        summary = f"{group}: {len(verdicts) - counts['not made']} run, {told}"
        print(f"\n{summary}\n")
        report[group] = {"counts": counts, "rows": [asdict(verdict) for verdict in verdicts]}
        bad = [verdict for verdict in verdicts if verdict.verdict != "right"]
        rows = [
            {
                "architecture": one.architecture,
                "verdict": one.verdict,
                "reason": textwrap.shorten(one.reason.replace("|", "/"), 240),
            }
            for one in bad
        ]
        pages.append(page(summary, verdicts, rows))
    if given.json:
        write_json(given.json, report)
    if given.markdown:
        given.markdown.write_text("\n\n".join([json.dumps(machine()), *pages]) + "\n")


def page(summary: str, verdicts: Sequence[Verdict], rows: Sequence[Mapping[str, object]]) -> str:
    """The architectures that are right by name, and a table of the others."""
    right = ", ".join(verdict.architecture for verdict in verdicts if verdict.verdict == "right")
    return "\n\n".join([f"## {summary}", textwrap.fill(f"Right: {right}.", 120), markdown_table(rows) if rows else ""])


if __name__ == "__main__":
    main()
