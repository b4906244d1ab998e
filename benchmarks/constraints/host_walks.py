"""Whether a type that compiles for the host engine can be generated: random texts of many types.

    python -m benchmarks.constraints.host_walks --schemas jsonschemabench/maskbench/data --json FILE

Schemas are drawn from MaskBench, or read from a file, as in `benchmarks.constraints.coverage`. Each is written for the
host engine, whether or not the device could hold texts to it. A walk draws each token from all that are allowed, until
the text has ended. It fails if the engine does, or if no token is allowed where the text cannot end.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gen
from benchmarks.constraints.coverage import read_schemas
from benchmarks.measuring import machine, write_json
from benchmarks.random_model import save_random_model
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.host_engine import Grammar, problem_of
from gen.constraints.schema import schema_grammar
from gen.constraints.tables.vocabulary import vocabulary_of

SEED = 20_260


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, required=True, help="a file of JSON lines, or MaskBench's folder")
    parser.add_argument("--each", type=int, default=100, help="how many schemas of each family of a folder")
    parser.add_argument("--types", type=int, default=600, help="how many types are walked")
    parser.add_argument("--walks", type=int, default=6, help="of each type")
    parser.add_argument("--tokens", type=int, default=200, help="of a walk at most")
    parser.add_argument("--vocab", type=int, default=49152, help="how many made-up words")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder), arguments.vocab)
        vocabulary = vocabulary_of(gen.load(folder, device="cpu"))
    schemas = read_schemas(arguments.schemas, arguments.each)
    random.Random(SEED).shuffle(schemas)
    chance = np.random.default_rng(SEED)
    seconds: list[float] = []
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    masks = ended = 0
    for number, one in enumerate(schemas):
        if len(seconds) == arguments.types:
            break
        begin = time.process_time()
        try:
            lark = schema_grammar(one["schema"], closed=number % 2 == 0, whitespace="line")
            grammar = Grammar(lark, vocabulary)
            grammar.try_out()
        except (gen.ConstraintError, Empty, TooLarge, Unsupported) as error:
            refused[one["name"]] = str(error)
            continue
        seconds.append(time.process_time() - begin)
        for _ in range(arguments.walks):
            token_ids, whole, problem = walk(grammar, chance, arguments.tokens)
            masks, ended = masks + len(token_ids), ended + whole
            if problem:
                failed[one["name"]] = f"after {len(token_ids)} tokens: {problem}"
    report: dict[str, Any] = {
        "machine": machine(),
        "vocabulary": vocabulary.size,
        "types": len(seconds),
        "refused": len(refused),
        "walks": len(seconds) * arguments.walks,
        "masks": masks,
        "walks that ended": ended,
        "types that failed": failed,
        "compile ms p50 / p95 / max": [round(1e3 * float(one)) for one in np.quantile(seconds, (0.5, 0.95, 1))],
    }
    for name, value in report.items():
        print(f"{name}: {value}")
    for name, why in refused.items():
        print(f"  refused: {name}: {why[:200]}")
    if arguments.json:
        write_json(arguments.json, report)


def walk(grammar: Grammar, chance: np.random.Generator, most: int) -> tuple[list[int], bool, str]:
    """The tokens of a random text, whether it has ended, and why it could not go on, or ""."""
    matcher = grammar.matcher()
    token_ids: list[int] = []
    while len(token_ids) < most:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if matcher.is_stopped() and matcher.is_accepting():
            return token_ids, True, ""
        if not len(allowed):
            return token_ids, False, problem_of(matcher) or "no token is allowed"
        token_id = int(chance.choice(allowed))
        if not matcher.consume_token(token_id):
            return token_ids, False, f"token {token_id} was allowed, and not taken"
        if matcher.is_stopped() and matcher.is_accepting():
            return [*token_ids, token_id], True, ""
        token_ids.append(token_id)
    return token_ids, False, ""


if __name__ == "__main__":
    main()
