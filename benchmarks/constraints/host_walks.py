"""Whether a type that compiles for the host engine can be generated: random texts of schemas of MaskBench.

Schemas are drawn as in `benchmarks.constraints.coverage`, 100 of each family. Each is written for the host engine,
whether or not the device could hold texts to it, with a vocabulary of 49,152 made-up words. A walk draws each token
from all that are allowed, until the text has ended. It fails if the engine does, or if no token is allowed where the
text cannot end.
"""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable

import numpy as np

import gen
from benchmarks.constraints.coverage import read_schemas
from benchmarks.random_model import load_random_model
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.host_engine import Grammar, problem_of
from gen.constraints.schema import schema_grammar
from gen.constraints.tables.vocabulary import vocabulary_of

SEED, WALKS = 20_260, 6


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """A schema, in the open reading or the closed one by turns."""
    vocabulary = vocabulary_of(load_random_model(49_152))
    schemas = [*read_schemas(given.material, 100).items()]
    random.Random(SEED).shuffle(schemas)

    def check(number: int) -> tuple[Counter[str], list[str]]:
        if number >= len(schemas):
            return Counter(), []
        name, load = schemas[number]
        try:
            grammar = Grammar(schema_grammar(load()["schema"], closed=number % 2 == 0, whitespace="line"), vocabulary)
            grammar.try_out()
        except (gen.ConstraintError, Empty, TooLarge, Unsupported) as error:
            print(f"refused: {name}: {error}"[:200])
            return Counter(refused=1), []
        counts, failed, chance = Counter(types=1, walks=WALKS), list[str](), np.random.default_rng(number)
        for _ in range(WALKS):
            token_ids, whole, problem = walk(grammar, chance, given.longest or 200)
            counts += Counter({"masks": len(token_ids), "walks that ended": whole})
            failed += [f"{name}, after {len(token_ids)} tokens: {problem}"] if problem else []
        return counts, failed

    return check


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
