"""Random types with fixed seeds: is every text that a type allows one that an independent reader takes?

Schemas (`random_types`) are judged by the jsonschema package (`judge`), every other one closed, in each layout by
turns. Texts are random ways through the automaton, values drawn from what the schema names, changes of both, and walks
through the masks of the demo's vocabulary: at each token all that the limit leaves are as likely. A walk must end
within its limit, in a text that is whole and valid, laid out as json.dumps does it. Types that go to the host engine
are walked there. "narrow" are schemas of which gen says that no value meets them, and a drawn value does: gen's formats
leave out some texts.

Patterns are judged by Python's re: an accepted text must match in full, with re.ASCII and without; as a `pattern` of a
schema it must be found in both readings. Counted too: ASCII texts that match in both and are not accepted.

"both" are such schemas and patterns as an automaton and as a grammar of the host engine: both must take the same texts.
Texts are random ways through the automaton, walks through the host's masks, and changes of their letters. Values of any
type nest deeper on the host, which is counted apart.
"""

import json
import random
import re
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import gen
from benchmarks.constraints.engines import TooSlow, within
from benchmarks.constraints.host_walks import walk
from benchmarks.constraints.judge import Judge, in_ecma
from benchmarks.constraints.random_types import (
    REGEX_LETTERS,
    changed,
    random_pattern,
    random_schema,
    random_value,
    scalars_near,
)
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.constraint import Constraint
from gen.constraints.host_engine import Grammar
from gen.constraints.output_types import Whitespace
from gen.constraints.plans import read_plan
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.models.base import Model
from tests.constraints.walks import random_texts

SECONDS = 60  # for one type
LAYOUTS: dict[Whitespace, dict[str, Any]] = {
    "line": {},
    "compact": {"separators": (",", ":")},
    "indent": {"separators": (",", ": "), "indent": 2},
}
Found = tuple[Counter[str], list[str]]
"""What was counted of a type, and what is wrong about it."""


def checker(given: Namespace) -> Callable[[int], Found]:
    """The demo model, or the given one; a type takes at most a minute."""
    warnings.simplefilter("ignore", FutureWarning)  # Python warns about "[["
    kind, model = KINDS[given.kind], gen.load(given.model or "demo", device="cpu")

    def check(number: int) -> Found:
        try:
            found: Found = within(SECONDS, lambda number: kind(model, number), number)
        except (TooSlow, RecursionError) as error:
            print(f"case {number} is not judged: {type(error).__name__}: {error}"[:300])
            return Counter({"not judged": 1}), []
        return found

    return check


def cause(error: str) -> str:
    """What a refusal has in common with others."""
    return "refused: " + re.split(r" at |[:;#0-9]", error)[0][:60]


def of_schema(model: Model, number: int, walks: int = 6) -> Found:
    """One schema: what it takes, and what is wrong about it."""
    chance = random.Random(f"schema {number}")
    schema = random_schema(chance)
    closed, layout = number % 2 == 0, [*LAYOUTS][number % 3]
    judge, scalars = Judge(schema), scalars_near(schema)
    values = [random_value(chance, 2, scalars) for _ in range(20)]
    counts, wrong = Counter[str](), list[str]()
    try:
        asked = gen.json_schema(schema, closed=closed, whitespace=layout)
        constraint = gen.compile(model, asked)
    except gen.ConstraintError as error:
        if "no text meets the output type" not in str(error):
            return Counter(["refused", cause(str(error))]), []
        met = [value for value in values if judge.takes(json.dumps(value))]
        if met and not closed:
            print(f"narrow: not even {met[0]!r} meets {schema}")
        return Counter({"no value": 1, "narrow": bool(met and not closed)}), []
    counts[constraint.engine] += 1
    texts = walked(constraint, walks, number, counts, wrong)
    if constraint.automaton is not None:
        texts += random_texts(constraint.automaton.table, walks, seed=number)
    values += [changed(chance, value, scalars) for value in [*map(json.loads, texts)] for _ in range(2)]
    own = len(texts)
    for at, text in enumerate([*texts, *(json.dumps(one, ensure_ascii=False, **LAYOUTS[layout]) for one in values)]):
        accepted, valid = constraint.accepts(text), judge.takes(text)
        counts[f"{'valid' if valid else 'invalid'} {'accepted' if accepted else 'rejected'}"] += 1
        if accepted and not valid:
            wrong.append(f"accepts {text}")
        if at < own and not accepted:
            wrong.append(f"writes {text}, and does not accept it")
        if at < own and laid_out(text, layout) != text:
            wrong.append(f"writes {text}, which is not laid out in layout {layout}")
    return counts, [f"{one}: {schema}{', closed' * closed}" for one in wrong]


def laid_out(text: str, layout: Whitespace) -> str:
    """The text in a layout of json.dumps, its numbers as they are written, and names that come twice too."""
    value = json.loads(
        text,
        parse_float=lambda number: f"\ue000{number}",
        parse_int=lambda number: f"\ue000{number}",
        object_pairs_hook=lambda pairs: {f"{name}\ue001{at}": one for at, (name, one) in enumerate(pairs)},
    )
    written = json.dumps(value, ensure_ascii=False, **LAYOUTS[layout])
    return re.sub('"\ue000([^"]*)"|\ue001\\d+', r"\1", written)


def of_regex(model: Model, number: int, walks: int = 6) -> Found:
    """One pattern, in full, and as what a schema's texts must contain."""
    chance = random.Random(f"regex {number}")
    pattern = random_pattern(chance)
    counts, wrong = Counter[str](), list[str]()
    flags = re.ASCII if number % 4 == 3 else 0
    try:
        readings = [re.compile(pattern, flags)]
        if not re.search(r"\(\?[a-z]*i", pattern):  # to ignore case is Python's alone: ASCII has fewer letters
            readings.append(re.compile(pattern, re.ASCII))
    except re.error:
        return Counter({"no pattern": 1}), []
    try:
        constraint = gen.compile(model, re.compile(pattern, flags))
    except gen.ConstraintError as error:
        if "no text meets" not in str(error):
            return Counter(["refused", cause(str(error).replace(pattern, "PATTERN"))]), []
        texts = ["".join(chance.choices(REGEX_LETTERS, k=chance.randint(0, 4))) for _ in range(60)]
        met = [text for text in texts if all(one.fullmatch(text) for one in readings) and text.isascii()]
        return Counter({"no text": 1}), [f"{pattern!r} has no text, not even {met[0]!r}"] if met else []
    counts[constraint.engine] += 1
    texts = walked(constraint, walks, number, counts, wrong)
    if constraint.automaton is not None:
        texts += random_texts(constraint.automaton.table, 2 * walks, seed=number, longest=16)
    own = len(texts)
    texts += [str(changed(chance, text[:20], ["a"])) for text in texts for _ in range(2)]
    texts += ["".join(chance.choices(REGEX_LETTERS, k=chance.randint(0, 6))) for _ in range(40)]
    for at, text in enumerate(texts):
        accepted, valid = constraint.accepts(text), all(one.fullmatch(text) for one in readings)
        counts[f"{'match' if valid else 'no match'} {'accepted' if accepted else 'rejected'}"] += 1
        if accepted and not valid:
            wrong.append(f"{pattern!r} accepts {text!r}")
        if valid and not accepted and text.isascii():
            counts["ASCII match rejected"] += 1
        if at < own and not accepted:
            wrong.append(f"{pattern!r} writes {text!r}, and does not accept it")
    _as_search(model, pattern, texts, counts, wrong)
    return counts, wrong


def _as_search(model: Model, pattern: str, texts: list[str], counts: Counter[str], wrong: list[str]) -> None:
    """The pattern in a schema."""
    try:
        constraint = gen.compile(model, gen.json_schema({"type": "string", "pattern": pattern}))
    except gen.ConstraintError:
        counts["as a search refused"] += 1
        return
    try:
        flagged = re.search(r"\(\?[a-z]", pattern) is not None  # means the same in both, and `in_ecma` cannot read it
        readings = [re.compile(pattern)] if flagged else [re.compile(pattern), in_ecma(pattern)]
    except re.error:
        counts["as a search not judged"] += 1
        return
    if constraint.automaton is not None:
        texts = [*texts, *map(json.loads, random_texts(constraint.automaton.table, 5, seed=0, longest=16))]
    for text in texts:
        accepted = constraint.accepts(json.dumps(text, ensure_ascii=False))
        found = all(one.search(text) for one in readings)
        counts[f"search: {'match' if found else 'no match'} {'accepted' if accepted else 'rejected'}"] += 1
        if accepted and not found:
            wrong.append(f"pattern {pattern!r} accepts {text!r}")


def of_both(model: Model, number: int) -> Found:
    """A schema or a pattern on both engines."""
    chance = random.Random(f"engines {number}")
    vocabulary, layout = vocabulary_of(model), chance.choice([*LAYOUTS])
    try:
        asked: Any = gen.regex(random_pattern(chance))
        if number % 3:
            asked = gen.json_schema(random_schema(chance), closed=number % 2 == 0, whitespace=layout)
        plan = read_plan(asked)
        assert plan.table is not None  # of schemas and patterns
        table = grammar = None
        with suppress(Empty):
            table = plan.table()
        with suppress(Empty):
            grammar = Grammar(plan.grammar(), vocabulary)
    except (TooLarge, Unsupported, gen.ConstraintError):
        return Counter({"not on both engines": 1}), []
    if table is None or grammar is None:
        alone = [f"{asked} has texts on one engine alone"] if table or grammar else []
        return Counter({"no value": 1}), alone
    texts, draws = random_texts(table, 12, seed=number, longest=30), np.random.default_rng(number)
    for _ in range(4):
        token_ids, whole, problem = walk(grammar, draws, 60)
        if problem:
            return Counter(), [f"{asked}: {problem}"]
        if whole:
            spelled = [vocabulary.tokens[one] for one in token_ids if one < vocabulary.size]
            texts.append(b"".join(spelled).decode())
    counts, wrong = Counter({"on both engines": 1}), list[str]()
    texts += [letters_changed(chance, text) for text in texts for _ in range(6)]
    texts += [json.dumps(random_value(chance, 2), ensure_ascii=False, **LAYOUTS[layout]) for _ in range(8)]
    for text in texts:
        device, host = table.accepts(text.encode()), grammar.accepts(text.encode())
        deeper = host and not device and table.depth is not None and nesting(text) > table.depth
        said = "deeper" if deeper else "taken" if device and host else "refused" if device == host else "different"
        counts[f"texts, {said}"] += 1
        if said == "different":
            wrong.append(f"{asked}: {'device' if device else 'host'} alone takes {text!r}")
    return counts, wrong


def letters_changed(chance: random.Random, text: str) -> str:
    at = chance.randint(0, len(text))
    new: str = chance.choice(["", *'"{}[],: 01.-eabE\\', "é", "\n", text[at : at + 2]])
    return text[:at] + new + text[at + chance.randint(0, 2) :]


def nesting(text: str) -> int:
    """How deep brackets nest, strings left out."""
    deep, most = 0, 0
    for one in re.sub(r'"(\\.|[^"\\])*"', "", text):
        deep += (one in "[{") - (one in "]}")
        most = max(most, deep)
    return most


def walked(constraint: Constraint, count: int, number: int, counts: Counter[str], wrong: list[str]) -> list[str]:
    """Texts of random walks through the masks of either engine; what fails is counted and told."""
    chance = np.random.default_rng(number)
    texts = []
    for _ in range(count):
        if constraint.automaton is not None:
            least = constraint.automaton.least_tokens
            found = bounded(constraint.automaton, chance, int(least + chance.choice([0, 3, 40])))
            counts["walks on the device"] += 1
            problem = "" if found is not None else "a walk did not end in its limit"
        else:
            assert constraint.grammar is not None  # one of the two is there
            token_ids, whole, problem = walk(constraint.grammar, chance, 100)
            found = [one for one in token_ids if one < constraint.vocabulary.size] if whole else None
            counts["walks on the host"] += 1
            counts["walks on the host that the limit cut"] += not whole and not problem
        if problem:
            wrong.append(problem)
        if found is not None:
            counts["walks that ended"] += 1
            texts.append(b"".join(constraint.vocabulary.tokens[one] for one in found).decode())
    return texts


def bounded(automaton: TokenAutomaton, chance: np.random.Generator, limit: int) -> list[int] | None:
    """The tokens of a random text of at most `limit`, drawn as the device draws; None if it has not ended there."""
    state, out = automaton.start, list[int]()
    for left in range(limit, -1, -1):
        if not automaton.needed[state] and (automaton.is_complete(state) or not left or chance.random() < 0.2):
            return out
        if not left:
            return None
        after, needed = left - 1, int(automaton.needed[state])
        kind = int(after < automaton.worst(state)) + int(after < needed)
        row = automaton.rows(int(automaton.group_of[state]))[0][kind]
        allowed = np.flatnonzero(np.unpackbits(row, count=automaton.vocabulary.size, bitorder="little"))
        if not len(allowed):
            return out if not needed else None
        out.append(int(chance.choice(allowed)))
        state = automaton.next_state(state, out[-1])
    return None


KINDS = {"schemas": of_schema, "regexes": of_regex, "both": of_both}
