"""All schemas of MaskBench in both readings: which engine takes each, is it right, and how long does compiling take?

    python -m benchmarks.constraints.maskbench jsonschemabench/maskbench/data --work maskbench.jsonl --json FILE

The folder is that of JSONSchemaBench (github.com/guidance-ai/jsonschemabench). Instances are compact texts with their
keys in the schema's order. Times are the process's CPU times with the vocabulary prepared. A line of --work is written
for each schema and reading, first in the open one; a run that is begun again goes on behind those that are there. A
valid instance that is rejected has a cause: its depth if the host engine, whose values of any type nest as deep as they
like, takes it; a keyword if it is taken where all of them are left out; undeclared properties in the closed reading;
that the engine fails, or takes too long; otherwise none.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.constraints.engines import TooSlow, within
from benchmarks.constraints.schema_order import SchemaOrder
from benchmarks.measuring import machine, write_json
from benchmarks.random_model import save_random_model
from gen.constraints.host_engine import Grammar
from gen.constraints.plans import read_plan
from gen.models.base import Model

SECONDS = 60  # for one schema or one instance
KEYWORDS = ("format", "pattern", "multipleOf", "uniqueItems", "maxLength", "propertyNames", "patternProperties")
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="a line of JSON for each schema and reading")
    parser.add_argument("--vocab", type=int, default=49152, help="how many made-up words the vocabulary has")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder), arguments.vocab)
        model = gen.load(folder, device="cpu")
    gen.compile(model, bool)  # makes the vocabulary's tables
    done = {(line["name"], line["closed"]) for line in lines(arguments.work)}
    files = sorted(arguments.folder.glob("*.json"))
    random.Random(0).shuffle(files)  # so that a part of a run is a sample
    with arguments.work.open("a", encoding="utf-8") as work:
        for closed in (False, True):
            for number, file in enumerate(files):
                if (file.stem, closed) not in done:
                    line = {"name": file.stem, "closed": closed, **measured(model, file, closed)}
                    work.write(json.dumps(line) + "\n")
                    work.flush()
                if number % 500 == 0:
                    print(closed, number, file=sys.stderr)
    report = {reading: summed(arguments.work, reading == "closed") for reading in ("open", "closed")}
    print(json.dumps(report, indent=1))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "vocabulary": arguments.vocab, **report})


def lines(file: Path) -> Iterator[Line]:
    if file.exists():
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def measured(model: Model, file: Path, closed: bool) -> Line:
    """What becomes of one schema and its instances."""
    given = json.loads(file.read_text(encoding="utf-8"))
    asked = gen.json_schema(given["schema"], closed=closed, whitespace="compact")
    begin = time.process_time()
    try:
        constraint = within(SECONDS, lambda asked: gen.compile(model, asked), asked)
    except (gen.ConstraintError, TooSlow) as error:
        return {"ms": (time.process_time() - begin) * 1e3, "refused": str(error)[:300]}
    line: Line = {"ms": (time.process_time() - begin) * 1e3, "engine": constraint.engine, "states": constraint.states}
    if constraint.reason:
        line["reason"] = constraint.reason[:200]
    order = SchemaOrder(given["schema"])
    kinds: Counter[str] = Counter()
    for test in given.get("tests", []):
        text = order.text(test["data"])
        failed = None
        try:
            accepted = within(SECONDS, constraint.accepts, text)
        except (gen.ConstraintError, TooSlow) as error:
            failed = "too slow" if isinstance(error, TooSlow) else "the engine fails"
            accepted = isinstance(error, TooSlow) and not test["valid"]  # nothing is known: it counts as wrong
        kinds["valid" if test["valid"] else "invalid"] += 1
        if accepted and not test["valid"]:
            kinds["accepted"] += 1
        if test["valid"] and not accepted:
            why = failed or cause(model, given["schema"], asked, text, undeclared=order.undeclared)
            kinds[f"rejected: {why}"] += 1
    return line | {"instances": kinds}


def cause(model: Model, schema: Any, asked: Any, text: str, *, undeclared: bool) -> str:
    """Why a valid instance is rejected, as far as it can be found out."""
    if undeclared and asked.closed:
        return "undeclared properties"
    try:
        vocabulary = gen.compile(model, bool).vocabulary
        if Grammar(read_plan(asked).grammar(), vocabulary).accepts(text.encode()):
            return "depth"
        for word in KEYWORDS:
            less = gen.json_schema(without(schema, word), closed=asked.closed, whitespace="compact")
            if gen.compile(model, less).accepts(text):
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


def summed(file: Path, closed: bool) -> dict[str, Any]:
    """The report of one reading."""
    found = [line for line in lines(file) if line["closed"] == closed]
    taken = [line for line in found if "refused" not in line]
    recursive = [line for line in taken if "refers to itself" in line.get("reason", "")]
    flat = len(taken) - len(recursive)
    times = sorted(line["ms"] for line in taken)
    instances = sum((Counter(line["instances"]) for line in taken), Counter[str]())
    rejected = {name[10:]: count for name, count in instances.items() if name.startswith("rejected")}
    refused = Counter(line["refused"].split(" at ")[0][:60] for line in found if "refused" in line)
    on_device = sum(line["engine"] == "device" for line in taken)
    return {
        "schemas": len(found),
        "refused": sum(refused.values()),
        "refused by cause": dict(refused.most_common(40)),
        "of those without recursion on the device": f"{on_device} of {flat} ({on_device / flat:.2%})",
        "recursive, on the host": len(recursive),
        "compile ms p50, p95, max": [round(times[int(part * (len(times) - 1))], 1) for part in (0.5, 0.95, 1)],
        "valid": instances["valid"],
        "rejected": sum(rejected.values()),
        "rejected by cause": rejected,
        "invalid": instances["invalid"],
        "accepted": instances["accepted"],
        "accepted in": [line["name"] for line in taken if line["instances"].get("accepted")],
        "states, median": statistics.median(line["states"] for line in taken if line["states"]),
    }


if __name__ == "__main__":
    main()
