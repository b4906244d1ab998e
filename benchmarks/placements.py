"""Which placements of transformers' models fail? Tiny models of every architecture, cut over virtual devices.

    python -m benchmarks.placements [--group decoders] [--only llama] [--jobs 2] [--most 16] [--page FILE]

decoders: everything that transformers lists as causal language models, with two texts. images: everything that it lists
as reading images and text, with an image in each of two texts.

Each architecture runs in a process of its own under `virtual_gpus.placements`: every cut over one, two and three GPUs,
and with parts on the CPU and on the disk, of more than `--most` cuts of one kind as many at random; a forward, a
backward with labels and `generate`. The oracle is the same model on the plain CPU.

A failure is sorted by its line and its error: "transformers" if a line of transformers mixes devices, or reads a weight
that accelerate has offloaded, which CUDA would refuse in the same way; "accelerate" if its hooks do; "numbers" if
nothing is raised and the numbers differ; all others are "to look at".
"""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.architectures.image_inputs import image_inputs
from benchmarks.architectures.sweep import Verdict, page, sweep
from benchmarks.architectures.tiny_models import UNSUITED, Group, model_types, tiny_model
from benchmarks.measuring import machine, read_arguments
from virtual_gpus.placements import Failure, examine

VERDICTS = ("right", "fails", "not run")

_FOLDERS = re.compile("(?<=')/.*/")  # of temporary files


def look(architecture: str, group: Group, most: int) -> Verdict:
    """Examine an architecture; its cases are what fails: "step at line" with how often, whose fault, and the error."""
    if architecture in UNSUITED:
        return Verdict(architecture=architecture, verdict="not run", reason=UNSUITED[architecture])
    try:
        report = examine(partial(_made, architecture, group), most=most)
    except Exception as error:
        return Verdict(architecture=architecture, verdict="not run", reason=f"{type(error).__name__}: {error}"[:300])
    cases = {
        f"{step} at {where}" if where else step: f"{len(failures)} | {whose(failures[0])} | "
        f"{failures[0].said.splitlines()[0]} | first with {failures[0].placement}"
        for (step, where), failures in report.by_line().items()
    }
    bad = len({id(failure.placement) for failure in report.failures})
    return Verdict(
        architecture=architecture,
        model=report.model,
        verdict="fails" if bad else "right",
        reason=f"{bad} of {report.placements} placements ({', '.join(report.steps)})",
        cases=cases,
    )


def _made(architecture: str, group: Group) -> Any:
    model = tiny_model(architecture, group)
    return (model, image_inputs(model)) if group == "images" else model


def whose(failure: Failure) -> str:
    if not failure.where:
        return "numbers"
    mixes = "Expected all tensors to be on the same device" in failure.said or "meta tensor" in failure.said
    for library in ("transformers", "accelerate"):
        if mixes and failure.where.startswith(f"{library}/"):
            return library
    return "to look at"


def report(verdicts: list[Verdict]) -> str:
    """The table as Markdown: counts, what is right, and a row for each line that fails."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    rows = []
    for verdict in verdicts:
        if verdict.verdict == "not run":
            rows.append({"architecture": verdict.architecture, "fails": "not run", "error": verdict.reason})
        for at, case in verdict.cases.items():
            count, fault, error, first = case.split(" | ", 3)
            rows.append(
                {
                    "architecture": verdict.architecture,
                    "fails": f"{count} of {verdict.reason.split(' ')[2]}",
                    "where": at,
                    "whose": fault,
                    "error": f"{_FOLDERS.sub('', error).replace('|', '/')[:160]}; {first}",
                }
            )
    columns = ("architecture", "fails", "where", "whose", "error")
    table = [{column: row.get(column, "") for column in columns} for row in rows]
    told = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    return f"{json.dumps(machine())}\n\n{page(told, verdicts, table)}\n"


def main() -> None:
    given = read_arguments(
        __doc__,
        group={"choices": ("decoders", "images"), "default": "decoders"},
        only=({"nargs": "*"}, "architectures; all by default"),
        jobs=1,
        most=(16, "cuts of one kind"),
        limit=(300.0, "seconds for each architecture"),
        page=(Path, "write the table there, as Markdown"),
    )
    names = [name for name in model_types(given.group) if name in (given.only or [name])]
    verdicts = []
    examiner = partial(look, most=given.most)
    for found in sweep(names, given.group, jobs=given.jobs, limit=given.limit, examiner=examiner):
        verdict = (
            replace(found, verdict="not run") if found.verdict == "wrong" else found
        )  # it crashed, or took too long
        verdicts.append(verdict)
        print(f"{verdict.architecture:26} {verdict.verdict:8} {verdict.reason}".rstrip(), flush=True)
        for at, case in verdict.cases.items():
            print(f"    {at}: {case}", flush=True)
        if given.page:  # after each, so that a sweep that is stopped leaves what it has
            given.page.write_text(report(sorted(verdicts, key=lambda one: one.architecture)), encoding="utf-8")


if __name__ == "__main__":
    main()
