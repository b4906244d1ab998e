"""Which JSON schemas each engine accepts, whether it is right, and how long compiling takes.

    python -m benchmarks.constraints.coverage --schemas schemas.jsonl
    python -m benchmarks.constraints.coverage --schemas jsonschemabench/maskbench/data --each 50

A line of the file is {"name", "schema", "tests": [{"data", "valid"}]}. The folder is the MaskBench part of
JSONSchemaBench (github.com/guidance-ai/jsonschemabench), of which --each schemas of each family are drawn with a fixed
seed; a family is the first part of the files' names, such as BFCL, Github_easy, Kubernetes. Instances are given as
compact texts with their keys in the schema's order. "listed only" are valid instances that have only properties listed
in their schema: the closed reading must accept these. Compile times are CPU times of the process for a vocabulary of
--vocab tokens, for accepted schemas; outlines_core's are for its regular expression alone. Peers are measured where
they are installed.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.constraints.engines import Engine, TooSlow, engines, within
from benchmarks.constraints.schema_order import SchemaOrder
from benchmarks.measuring import machine, markdown_table, write_json
from benchmarks.random_model import save_random_model

SECONDS = 20  # for one schema; an engine that takes longer has refused it
Schemas = list[dict[str, Any]]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            save_random_model(Path(folder), arguments.vocab)
        model = gen.load(arguments.model or folder, device="cpu")
    schemas = read_schemas(arguments.schemas, arguments.each)
    gen.compile(model, bool)  # makes the vocabulary's tables
    results = {}
    for name, engine in engines(model).items():
        if name.startswith(tuple(arguments.engines)):
            results[name] = measure(engine, schemas)
            print(f"measured {name}", file=sys.stderr)
    described = {"machine": machine(), "schemas": len(schemas), "vocabulary": model.vocab_size}
    rows = [result.row(name, len(schemas)) for name, result in results.items()]
    print(json.dumps(described), "\n")
    print(markdown_table(rows))
    if arguments.refused:
        for name, result in results.items():
            print(f"\n{name} refuses:", *(f"{one}: {why}" for one, why in result.refused.items()), sep="\n  ")
            print(f"{name} is wrong on:", *result.wrong, sep="\n  ")
    if arguments.json:
        write_json(arguments.json, {**described, "rows": rows})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, required=True, help="a file of JSON lines, or MaskBench's folder")
    parser.add_argument("--each", type=int, default=50, help="how many schemas of each family of a folder")
    parser.add_argument("--model", help="use this model's vocabulary; default: made-up words")
    parser.add_argument("--vocab", type=int, default=49152, help="how many made-up words")
    parser.add_argument("--engines", nargs="+", default=[""], help="measure engines whose names begin so; default: all")
    parser.add_argument("--refused", action="store_true", help="name the schemas that are refused, and the errors")
    parser.add_argument("--json", type=Path, help="write the report there")
    return parser.parse_args()


def read_schemas(path: Path, each: int) -> Schemas:
    """The schemas of a file, or `each` schemas of each family of a folder."""
    if path.is_file():
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    families: dict[str, list[Path]] = {}
    for file in sorted(path.glob("*.json")):
        families.setdefault(re.sub(r"(---|_\w*\d+\.json$).*", "", file.name), []).append(file)
    chance = random.Random(0)
    drawn = [file for files in families.values() for file in chance.sample(files, min(each, len(files)))]
    print(f"{len(drawn)} schemas of {', '.join(families)}", file=sys.stderr)
    return [{"tests": [], **json.loads(file.read_text()), "name": file.stem} for file in drawn]


@dataclass
class Result:
    """What one engine did with all schemas."""

    milliseconds: list[float] = field(default_factory=list)
    valid: int = 0
    listed: int = 0
    invalid: int = 0
    rejected: int = 0
    listed_rejected: int = 0
    accepted: int = 0
    slowest_refusal: float = 0
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def row(self, name: str, schemas: int) -> dict[str, object]:
        times = sorted(self.milliseconds)
        reached = f"{len(times)} ({len(times) / schemas:.1%})"
        percentile = f"{statistics.median(times):.1f} / {times[int(0.95 * (len(times) - 1))]:.0f} / {times[-1]:.0f}"
        return {
            "engine": name,
            f"of {schemas} schemas": reached,
            "valid rejected": f"{self.rejected} of {self.valid}",
            "listed only": f"{self.listed_rejected} of {self.listed}",
            "invalid accepted": f"{self.accepted} of {self.invalid}",
            "compile ms p50 / p95 / max": percentile,
            "slowest refusal ms": f"{self.slowest_refusal:.0f}",
        }


def measure(engine: Engine, schemas: Schemas) -> Result:
    """Run an engine on all schemas and their instances."""
    result = Result()
    for one in schemas:
        begin = time.process_time()
        try:
            accepts = within(SECONDS, engine, one["schema"])
        except Exception as error:  # whatever an engine raises is its refusal
            result.refused[one["name"]] = f"{type(error).__name__}: {error}"[:200]
            result.slowest_refusal = max(result.slowest_refusal, (time.process_time() - begin) * 1e3)
            continue
        result.milliseconds.append((time.process_time() - begin) * 1e3)
        order = SchemaOrder(one["schema"])
        for test in one["tests"]:
            text = order.text(test["data"])
            try:
                accepted = within(SECONDS, accepts, text)
            except TooSlow:
                accepted = not test["valid"]
            if accepted != test["valid"]:
                result.wrong.append(f"{one['name']}: {'accepts' if accepted else 'rejects'} {text[:200]}")
            if test["valid"]:
                result.valid += 1
                result.rejected += not accepted
                result.listed += not order.undeclared
                result.listed_rejected += not accepted and not order.undeclared
            else:
                result.invalid += 1
                result.accepted += accepted
    return result


if __name__ == "__main__":
    main()
