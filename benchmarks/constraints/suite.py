"""Whether gen's reading of JSON Schema is that of the specification's own tests.

    python -m benchmarks.constraints.suite jsonschema-4.26.0 --json FILE

The folder is JSON-Schema-Test-Suite (github.com/json-schema-org), or the source distribution of `jsonschema`, which
holds a copy. Each schema is compiled in both readings. Each instance is given as several compact texts, with its keys
in every order and whole numbers with and without ".0". It counts as accepted if one of them is, since gen writes a
value in one way only. A keyword's file is "required" unless the suite has it in its folder `optional`. `format.json`,
which expects formats to be only annotations, is "remarks": gen holds texts to formats, as the specification allows.
"""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import gen
from benchmarks.constraints.engines import TooSlow, within
from benchmarks.measuring import publish, read_arguments
from benchmarks.random_model import load_random_model
from gen.models.base import Model

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
KINDS = ("required", "remarks", "optional")
SECONDS = 20  # for one schema or text
_ORDERS = 200  # of one instance


def main() -> None:
    given = read_arguments(
        __doc__,
        folder_=({"type": Path}, "the folder that contains tests, or json/tests"),
        wrong=(False, "name the instances that are wrong, and what is refused"),
    )
    rows, wrong = run(given.folder, load_random_model(300))  # what is accepted does not depend on the vocabulary
    if given.wrong:
        print(*wrong, sep="\n")
    total = {(draft, kind, "all"): Counts() for draft in DRAFTS for kind in KINDS}
    for (draft, kind, _), counts in rows.items():
        total[draft, kind, "all"].update(counts)
    names = ("draft", "kind", "keyword")
    shown = [
        dict(zip(names, key, strict=True)) | {column: counts[column] for column in COLUMNS}
        for key, counts in (total | rows).items()
    ]
    publish(given, rows=shown)


Counts = Counter[str]
"""What happened with the tests of one keyword, by these names.

schemas: how many there are; "refused" of them with an error, "refused_closed" only in the closed reading. valid,
invalid: instances of the schemas that the open reading accepts; rejected, accepted: valid and invalid ones in the open
reading; "accepted_closed": invalid ones in the closed.
"""
COLUMNS = ("schemas", "refused", "refused_closed", "valid", "rejected", "invalid", "accepted", "accepted_closed")
Keyword = tuple[str, str, str]
"""Its draft, its kind, and its name."""


def run(folder: Path, model: Model) -> tuple[dict[Keyword, Counts], list[str]]:
    """A row for each keyword and draft, and a line for everything that is wrong or refused.

    Raises:
        FileNotFoundError: the folder has no tests.
    """
    tests = next((one for one in (folder / "tests", folder / "json" / "tests") if one.is_dir()), None)
    if tests is None:
        raise FileNotFoundError(f"{folder} has no folder tests, nor json/tests")
    rows: dict[Keyword, Counts] = {}
    wrong: list[str] = []
    for draft in DRAFTS:
        for file in sorted((tests / draft).rglob("*.json")):
            keyword = str(file.relative_to(tests / draft).with_suffix(""))
            kind = "optional" if "optional" in file.parts else "remarks" if keyword == "format" else "required"
            counts = rows[draft, kind, keyword] = Counts()
            for group in json.loads(file.read_text()):
                wrong += _group(counts, draft, keyword, group, model)
    return rows, wrong


def _group(counts: Counts, draft: str, keyword: str, group: dict[str, Any], model: Model) -> Iterator[str]:
    """Count one schema and its instances; yields a line for everything that is wrong."""
    schema = group["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": DRAFTS[draft]} | schema
    where = f"{draft}/{keyword}: {group['description']}"
    counts["schemas"] += 1
    for closed in (False, True):
        refusal = None
        try:
            constraint = within(SECONDS, lambda closed: _compiled(model, schema, closed), closed)
        except (gen.errors.ConstraintError, TooSlow) as error:
            if "no text meets the output type" in str(error):
                constraint = None
            else:
                refusal = str(error)
        if refusal is not None:
            counts["refused_closed" if closed else "refused"] += 1
            yield f"{where}: refused{' when closed' * closed}: {refusal[:200]}"
            continue
        for test in group["tests"]:
            accepted = constraint is not None and any(constraint.accepts(text) for text in orders(test["data"]))
            if closed:
                counts["accepted_closed"] += accepted and not test["valid"]
            elif test["valid"]:
                counts.update(valid=1, rejected=not accepted)
            else:
                counts.update(invalid=1, accepted=accepted)
            if accepted > test["valid"] or (accepted < test["valid"] and not closed):
                yield f"{where}: {'accepts' if accepted else 'rejects'}{' when closed' * closed} {test['data']!r:.150}"


def _compiled(model: Model, schema: Any, closed: bool) -> gen.Constraint:
    return gen.compile(model, gen.json_schema(schema, closed=closed, whitespace="compact"))


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


if __name__ == "__main__":
    main()
