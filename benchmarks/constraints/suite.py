"""Whether gen's reading of JSON Schema is that of the specification's own tests.

    python -m benchmarks.cases suite --material jsonschema-4.26.0 --count 1000 --json FILE

The folder is JSON-Schema-Test-Suite (github.com/json-schema-org), or the source distribution of `jsonschema`, which
holds a copy; a case is one of its schemas. It is compiled in both readings. Each instance is given as several compact
texts, with its keys in every order and whole numbers with and without ".0". It counts as accepted if one of them is,
since gen writes a value in one way only. A keyword's file is "required" unless the suite has it in its folder
`optional`. `format.json`, which expects formats to be only annotations, is "remarks": gen holds texts to formats, as
the specification allows. Differences are invalid instances that a reading accepts, and valid ones of required tests
that the open reading rejects.
"""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import gen
from benchmarks.constraints.engines import TooSlow, within
from benchmarks.random_model import load_random_model

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
SECONDS = 20  # for one schema or text
_ORDERS = 200  # of one instance
Group = dict[str, Any]


def groups(folder: Path) -> Iterator[tuple[str, str, Group]]:
    """The draft and the keyword of each schema, and the schema with its instances.

    Raises:
        FileNotFoundError: the folder has no tests.
    """
    tests = next((one for one in (folder / "tests", folder / "json" / "tests") if one.is_dir()), None)
    if tests is None:
        raise FileNotFoundError(f"{folder} has no folder tests, nor json/tests")
    for draft in DRAFTS:
        for file in sorted((tests / draft).rglob("*.json")):
            keyword = str(file.relative_to(tests / draft).with_suffix(""))
            yield from ((draft, keyword, group) for group in json.loads(file.read_text()))


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """What is accepted does not depend on the vocabulary."""
    found, model = [*groups(given.material)], load_random_model(300)

    def compiled(asked: Any) -> gen.Constraint | None:
        try:
            made: gen.Constraint = within(SECONDS, lambda asked: gen.compile(model, asked), asked)
        except gen.ConstraintError as error:
            if "no text meets the output type" in str(error):
                return None
            raise
        return made

    def check(number: int) -> tuple[Counter[str], list[str]]:
        if number >= len(found):
            return Counter(), []
        draft, keyword, group = found[number]
        kind = "optional" if "optional/" in keyword else "remarks" if keyword == "format" else "required"
        schema, counts, wrong = group["schema"], Counter({f"{kind}: schemas": 1}), list[str]()
        if isinstance(schema, dict):
            schema = {"$schema": DRAFTS[draft]} | schema
        for closed in (False, True):
            reading = ", closed" * closed
            try:
                constraint = compiled(gen.json_schema(schema, closed=closed, whitespace="compact"))
            except (gen.ConstraintError, TooSlow) as error:
                counts.update([f"{kind}{reading}: refused", f"refused{reading}: {draft}/{keyword}"])
                print(f"refused{reading}: {draft}/{keyword}: {group['description']}: {str(error)[:200]}")
                continue
            for test in group["tests"]:
                accepted = constraint is not None and any(map(constraint.accepts, orders(test["data"])))
                said = f"{'valid' if test['valid'] else 'invalid'} {'accepted' if accepted else 'rejected'}"
                counts[f"{kind}{reading}: {said}"] += 1
                if accepted > test["valid"] or (accepted < test["valid"] and kind == "required" and not closed):
                    wrong.append(f"{draft}/{keyword}: {group['description']}: {said}{reading}: {test['data']!r:.150}")
        return counts, wrong

    return check


def orders(value: Any) -> Iterator[str]:
    """A value as compact texts, with its keys in every order and numbers in two spellings."""
    return islice(_orders(value), _ORDERS)


def _orders(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for names in permutations(value):
            for texts in product(*(list(islice(_orders(value[name]), 6)) for name in names)):
                pairs = (
                    f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in zip(names, texts, strict=True)
                )
                yield f"{{{','.join(pairs)}}}"
    elif isinstance(value, list):
        for texts in product(*(list(islice(_orders(one), 6)) for one in value)):
            yield f"[{','.join(texts)}]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, int) and not isinstance(value, bool):
            yield f"{value}.0"
        elif isinstance(value, float) and value.is_integer():
            yield str(int(value))
