"""Which JSON schemas each engine accepts, whether it is right, and how long compiling takes.

    python -m benchmarks.constraints.coverage --schemas schemas.jsonl
    python -m benchmarks.constraints.coverage --schemas jsonschemabench/maskbench/data --each 50
    python -m benchmarks.constraints.coverage --schemas jsonschemabench/maskbench/data --each 0 --engines "gen or" \\
        --seconds 60 --work maskbench.jsonl

A line of the file is {"name", "schema", "tests": [{"data", "valid"}]}. The folder is the MaskBench part of
JSONSchemaBench (github.com/guidance-ai/jsonschemabench), of which --each schemas of each family are drawn with a fixed
seed, or with 0 all are taken; a family is the first part of the files' names, such as BFCL, Github_easy, Kubernetes.
Instances are given as compact texts with their keys in the schema's order. "listed only" are valid instances that have
only properties listed in their schema: the closed reading must accept these. Compile times are CPU times of the process
for a vocabulary of --vocab tokens, for accepted schemas; outlines_core's are for its regular expression alone. Peers
are measured where they are installed.

"gen or host" is `gen.compile`, and has a report of its own. There, a valid instance that is rejected has a cause: its
depth if the host engine, whose values of any type nest as deep as they like, takes it; a keyword if it is taken where
all of them are left out; undeclared properties in the closed reading; that the engine fails, or takes too long;
otherwise none.
"""

import json
import random
import re
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gen
from benchmarks.constraints.engines import Engine, TooSlow, engines, within
from benchmarks.constraints.schema_order import SchemaOrder
from benchmarks.measuring import publish, read_arguments, work_on
from benchmarks.random_model import load_random_model
from gen.constraints import compiling
from gen.constraints.host_engine import Grammar
from gen.constraints.plans import read_plan
from gen.models.base import Model

KEYWORDS = ("format", "pattern", "multipleOf", "uniqueItems", "maxLength", "propertyNames", "patternProperties")
Line = dict[str, Any]


def main() -> None:
    given = read_arguments(
        __doc__,
        schemas=({"type": Path, "required": True}, "a file of JSON lines, or MaskBench's folder"),
        each=(50, "how many schemas of each family of a folder; 0 for all"),
        model=(str, "use this model's vocabulary; default: made-up words"),
        vocab=(49152, "how many made-up words"),
        engines=([""], "measure engines whose names begin so; default: all"),
        seconds=(20, "for one schema or instance; an engine that takes longer has refused it"),
        refused=(False, "name the schemas that are refused, and the errors, and the instances that are wrong"),
        work=(Path, "a file with a line of JSON for each engine and schema; a run that is begun again goes on there"),
    )
    model: Model = gen.load(given.model, device="cpu") if given.model else load_random_model(given.vocab)
    gen.compile(model, bool)  # makes the vocabulary's tables
    schemas = read_schemas(given.schemas, given.each)
    found: dict[str, list[Line]] = {}
    for engine in engines(model):
        if engine.name.startswith(tuple(given.engines)):
            compiling._kept.clear()  # what another engine has compiled
            names = {f"{engine.name}: {name}": load for name, load in schemas.items()}
            found[engine.name] = work_on(given.work, names, partial(_tried, model, engine, names, given))
            print(f"measured {engine.name}", file=sys.stderr)
    rows = [row(name, lines) for name, lines in found.items()]
    reports = {name: summed(lines) for name, lines in found.items() if name.startswith("gen or host")}
    if given.refused:
        for lines in found.values():
            print(*(f"{one['case']}: {one['refused']}" for one in lines if "refused" in one), sep="\n")
            print(*(f"{one['case']} {text}" for one in lines for text in one.get("wrong", ())), sep="\n")
    publish(given, schemas=len(schemas), vocabulary=model.vocab_size, rows=rows, **reports)


def read_schemas(path: Path, each: int) -> dict[str, Callable[[], Line]]:
    """What reads the schemas of a file, by their names; or `each` of each family of a folder, or all in a random order,
    so that a part of a run is a sample."""
    if path.is_file():
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return {line["name"]: partial(dict, line) for line in lines}
    files, chance = sorted(path.glob("*.json")), random.Random(0)
    if not each:
        chance.shuffle(files)
        return {file.stem: partial(_read, file) for file in files}
    families: dict[str, list[Path]] = {}
    for file in files:
        families.setdefault(re.sub(r"(---|_\w*\d+\.json$).*", "", file.name), []).append(file)
    drawn = [file for files in families.values() for file in chance.sample(files, min(each, len(files)))]
    print(f"{len(drawn)} schemas of {', '.join(families)}", file=sys.stderr)
    return {file.stem: partial(_read, file) for file in drawn}


def _read(file: Path) -> Line:
    return {"tests": [], **json.loads(file.read_text(encoding="utf-8"))}


def _tried(model: Model, engine: Engine, names: dict[str, Callable[[], Line]], given: Namespace, case: str) -> Line:
    """What becomes of one schema and its instances."""
    one = names[case]()
    begin = time.process_time()
    try:
        accepts, facts = within(given.seconds, engine.compile, one["schema"])
    except engine.refusals as error:
        return {"ms": (time.process_time() - begin) * 1e3, "refused": f"{type(error).__name__}: {error}"[:300]}
    line: Line = {"ms": (time.process_time() - begin) * 1e3, **facts, "wrong": []}
    order, kinds = SchemaOrder(one["schema"]), Counter[str]()
    for test in one["tests"]:
        text, valid, failed = order.text(test["data"]), test["valid"], None
        try:
            accepted = within(given.seconds, accepts, text)
        except (gen.ConstraintError, TooSlow) as error:
            failed = "too slow" if isinstance(error, TooSlow) else "the engine fails"
            accepted = isinstance(error, TooSlow) and not valid  # nothing is known: it counts as wrong
        kinds["valid" if valid else "invalid"] += 1
        kinds["listed"] += valid and not order.undeclared
        if accepted != valid:
            line["wrong"].append(f"{'accepts' if accepted else 'rejects'} {text[:200]}")
        if accepted and not valid:
            kinds["accepted"] += 1
        if valid and not accepted:
            kinds["listed rejected"] += not order.undeclared
            closed = engine.name.endswith("closed")
            if engine.name.startswith("gen or host"):
                failed = failed or cause(model, one["schema"], closed, text, undeclared=order.undeclared)
            kinds[f"rejected: {failed}"] += 1
    return line | {"instances": kinds}


def cause(model: Model, schema: Any, closed: bool, text: str, *, undeclared: bool) -> str:
    """Why a valid instance is rejected, as far as it can be found out."""
    if undeclared and closed:
        return "undeclared properties"
    asked = partial(gen.json_schema, closed=closed, whitespace="compact")
    try:
        vocabulary = gen.compile(model, bool).vocabulary
        if Grammar(read_plan(asked(schema)).grammar(), vocabulary).accepts(text.encode()):
            return "depth"
        for word in KEYWORDS:
            if gen.compile(model, asked(without(schema, word))).accepts(text):
                return word
    except (gen.ConstraintError, TooSlow):
        return "unknown"
    return "other"


def without(schema: Any, word: str) -> Any:
    """A schema without a keyword."""
    if isinstance(schema, list):
        return [without(one, word) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without(one, word) for key, one in schema.items() if key != word}


def _counted(lines: Sequence[Line]) -> tuple[Counter[str], int, list[float]]:
    """The instances of accepted schemas, how many valid ones are rejected, and the compile times p50, p95 and max."""
    taken = [line for line in lines if "refused" not in line]
    counts = sum((Counter(line["instances"]) for line in taken), Counter[str]())
    rejected = sum(count for name, count in counts.items() if name.startswith("rejected"))
    times = np.quantile([line["ms"] for line in taken] or [0.0], (0.5, 0.95, 1), method="lower")
    return counts, rejected, times.tolist()


def row(name: str, lines: Sequence[Line]) -> dict[str, object]:
    """The row of one engine."""
    refused = [line["ms"] for line in lines if "refused" in line]
    counts, rejected, (half, most, slowest) = _counted(lines)
    reached = len(lines) - len(refused)
    return {
        "engine": name,
        f"of {len(lines)} schemas": f"{reached} ({reached / len(lines):.1%})",
        "valid rejected": f"{rejected} of {counts['valid']}",
        "listed only": f"{counts['listed rejected']} of {counts['listed']}",
        "invalid accepted": f"{counts['accepted']} of {counts['invalid']}",
        "compile ms p50 / p95 / max": f"{half:.1f} / {most:.0f} / {slowest:.0f}",
        "slowest refusal ms": f"{max(refused, default=0):.0f}",
    }


def summed(lines: Sequence[Line]) -> dict[str, Any]:
    """The report of one reading."""
    taken = [line for line in lines if "refused" not in line]
    recursive = [line for line in taken if "refers to itself" in line["reason"]]
    flat, on_device = len(taken) - len(recursive), sum(line["engine"] == "device" for line in taken)
    counts, rejected, times = _counted(lines)
    why = (line["refused"].partition(": ")[2] for line in lines if "refused" in line)
    refused = Counter(one.split(" at ")[0][:60] for one in why)
    return {
        "schemas": len(lines),
        "refused": sum(refused.values()),
        "refused by cause": dict(refused.most_common(40)),
        "of those without recursion on the device": f"{on_device} of {flat} ({on_device / max(1, flat):.2%})",
        "recursive, on the host": len(recursive),
        "compile ms p50, p95, max": [round(one, 1) for one in times],
        "valid": counts["valid"],
        "rejected": rejected,
        "rejected by cause": {name[10:]: count for name, count in counts.items() if name.startswith("rejected")},
        "invalid": counts["invalid"],
        "accepted": counts["accepted"],
        "accepted in": [line["case"] for line in taken if line["instances"].get("accepted")],
        "states, median": float(np.median([line["states"] for line in taken if line["states"]] or [0])),
    }


if __name__ == "__main__":
    main()
