"""Whether a type that compiles for the host engine can be generated: random texts of many types.

    python -m benchmarks.constraints.host_walks --schemas jsonschemabench/maskbench/data --json FILE

Schemas are drawn from MaskBench, or read from a file, as in `benchmarks.constraints.coverage`. Each is written for the
host engine, whether or not the device could hold texts to it. A walk draws each token from all that are allowed, until
the text has ended. It fails if the engine does, or if no token is allowed where the text cannot end.
"""

import random
import time
from pathlib import Path

import numpy as np

import gen
from benchmarks.constraints.coverage import read_schemas
from benchmarks.measuring import publish, read_arguments
from benchmarks.random_model import load_random_model
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.host_engine import Grammar, problem_of
from gen.constraints.schema import schema_grammar
from gen.constraints.tables.vocabulary import vocabulary_of

SEED = 20_260


def main() -> None:
    given = read_arguments(
        __doc__,
        schemas=({"type": Path, "required": True}, "a file of JSON lines, or MaskBench's folder"),
        each=(100, "how many schemas of each family of a folder"),
        types=(600, "how many types are walked"),
        walks=(6, "of each type"),
        tokens=(200, "of a walk at most"),
        vocab=(49152, "how many made-up words"),
    )
    vocabulary = vocabulary_of(load_random_model(given.vocab))
    schemas = [*read_schemas(given.schemas, given.each).items()]
    random.Random(SEED).shuffle(schemas)
    chance = np.random.default_rng(SEED)
    seconds: list[float] = []
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    masks = ended = 0
    for number, (name, load) in enumerate(schemas):
        if len(seconds) == given.types:
            break
        schema, begin = load()["schema"], time.process_time()
        try:
            lark = schema_grammar(schema, closed=number % 2 == 0, whitespace="line")
            grammar = Grammar(lark, vocabulary)
            grammar.try_out()
        except (gen.ConstraintError, Empty, TooLarge, Unsupported) as error:
            refused[name] = str(error)
            continue
        seconds.append(time.process_time() - begin)
        for _ in range(given.walks):
            token_ids, whole, problem = walk(grammar, chance, given.tokens)
            masks, ended = masks + len(token_ids), ended + whole
            if problem:
                failed[name] = f"after {len(token_ids)} tokens: {problem}"
    for name, why in refused.items():
        print(f"refused: {name}: {why[:200]}")
    publish(
        given,
        vocabulary=vocabulary.size,
        types=len(seconds),
        refused=len(refused),
        walks=len(seconds) * given.walks,
        masks=masks,
        **{
            "walks that ended": ended,
            "types that failed": failed,
            "compile ms p50 / p95 / max": [round(1e3 * float(one)) for one in np.quantile(seconds, (0.5, 0.95, 1))],
        },
    )


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
