"""Calls of the tools of BFCL: which functions compile, and are right calls taken and changed ones refused?

    pip download --no-deps bfcl-eval && unzip bfcl_eval-*.whl -d bfcl
    python -m benchmarks.cases bfcl --material bfcl/bfcl_eval/data --count 3641 --work bfcl.jsonl --json FILE

Types are those of JSON Schema instead of BFCL's ("dict" becomes "object", "float" "number", "any" is left out). The
functions of an item are compiled together, for the demo's vocabulary and calls in Hermes' form; where that is refused,
each alone. A call is right if jsonschema takes its arguments and all of them are listed. Each ground truth is taken
with the first of its values; changes of it leave out what is required, or give a wrong type, null, no option of an
enum, 1.5 for an integer, a wrong item or property within, an argument that is not listed, another name.
"""

import copy
import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gen
from benchmarks.constraints.judge import Judge
from benchmarks.constraints.schema_order import SchemaOrder
from gen.models.base import Model

TYPES = {"dict": "object", "float": "number", "tuple": "array", "String": "string", "Boolean": "boolean"}
TYPES |= {"Array": "array", "ArrayList": "array", "HashMap": "object", "long": "integer", "double": "number"}
TYPES |= {"char": "string"}
Line = dict[str, Any]


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """An item by its number; those with a ground truth come first, and nothing after the last one."""
    model, found = gen.load("demo", device="cpu"), [*items(given.material)]
    return lambda number: tried(model, *found[number], number) if number < len(found) else (Counter(), [])


def items(folder: Path) -> Iterator[tuple[list[Line], list[Line]]]:
    """The tools of each item, and the calls of its ground truth."""
    files = sorted([*folder.glob("BFCL_*.json"), *folder.glob("unused_datasets/question/BFCL_*.json")])
    for file in sorted(files, key=lambda file: not (file.parent / "possible_answer" / file.name).exists()):
        lines = file.read_text(encoding="utf-8").splitlines()
        if not lines or '"function"' not in lines[0]:
            continue
        answers = file.parent / "possible_answer" / file.name
        truths = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
        known = {one["id"]: one["ground_truth"] for one in truths}
        for item in map(json.loads, lines):
            tools = item["function"] if isinstance(item["function"], list) else [item["function"]]
            yield [mapped(tool) for tool in tools], known.get(item.get("id"), [])


def mapped(value: Any) -> Any:
    """A tool with JSON Schema's types."""
    if isinstance(value, list):
        return [mapped(one) for one in value]
    if not isinstance(value, dict):
        return value
    said = value.get("type")
    out = {name: mapped(one) for name, one in value.items()}
    if isinstance(said, str):
        out["type"] = TYPES.get(said, said)
        if said in ("any", ""):
            del out["type"]
    return out


def tried(model: Model, tools: list[Line], truths: list[Line], number: int) -> tuple[Counter[str], list[str]]:
    """What becomes of an item."""
    taken = list({tool["name"]: tool for tool in tools}.values())
    counts, wrong = Counter(functions=len(taken)), list[str]()
    choice: Any = "auto" if number % 4 == 3 else "required"
    try:
        constraint = gen.compile(model, gen.tool_calls(taken, choice=choice, format="hermes"))
    except gen.ConstraintError:
        why = {tool["name"]: refusal(model, tool) for tool in taken}
        counts.update(f"refused: {one}" for one in why.values() if one is not None)
        taken = [tool for tool in taken if why[tool["name"]] is None]
        if not taken:
            return counts, wrong
        constraint = gen.compile(model, gen.tool_calls(taken, choice=choice, format="hermes"))
    counts[f"items, {constraint.engine}"] += 1
    by_name = {tool["name"]: tool.get("parameters") or {} for tool in taken}
    for truth in truths if isinstance(truths, list) else []:
        for name, wanted in truth.items() if isinstance(truth, dict) else []:
            if name in by_name:
                wrong += _compared(constraint, name, first_values(wanted), by_name, counts)
    return counts, wrong


def refusal(model: Model, tool: Line) -> str | None:
    """Why a function alone does not compile; None if it does."""
    try:
        gen.compile(model, gen.tool_calls([tool], format="hermes"))
    except gen.ConstraintError as error:
        return f"{tool['name']}: {error}"[:300]
    return None


def first_values(wanted: Line) -> Line:
    """The first value that a ground truth names for each argument; "" stands for one that is left out."""
    out = {}
    for name, values in wanted.items():
        value = values[0] if isinstance(values, list) and values else values
        if value != "" or not isinstance(values, list) or "" not in values:
            out[name] = plain(value)
    return out


def plain(value: Any) -> Any:
    """A value whose objects name several values for each property, with the first of these."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return first_values(value) if isinstance(value, dict) else value


def _compared(
    constraint: gen.Constraint, name: str, arguments: Line, by_name: dict[str, Line], counts: Counter[str]
) -> Iterator[str]:
    """Give a constraint a call and changes of it; yields what it should not take, and what it should."""
    schema = by_name[name]
    judge, arguments = Judge(closed(schema)), json.loads(SchemaOrder(schema).text(arguments))

    def taken(name: str, arguments: Line) -> bool:
        call = {"name": name, "arguments": arguments}
        return constraint.accepts(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>")

    right = judge.takes(json.dumps(arguments))
    accepted = taken(name, arguments)
    counts[f"ground truths {'right' if right else 'wrong'}, {'taken' if accepted else 'not taken'}"] += 1
    if right != accepted:
        yield f"{name}, {'taken' if accepted else 'not taken'}: {json.dumps(arguments)}"[:300]
    others = [(kind, name, other) for kind, other in changes(schema, arguments) if not judge.takes(json.dumps(other))]
    others += [("name", new, arguments) for new in {f"{name}x", name[:-1], "", name.upper()} - by_name.keys()]
    for kind, called, other in others:
        counts.update(["changed", f"changed: {kind}"])
        if taken(called, other):
            yield f"{called}, {kind}: {json.dumps(other)}"[:300]


def closed(schema: Any) -> Any:
    """A schema whose objects have only what they list, as gen reads it."""
    if not isinstance(schema, dict):
        return [closed(one) for one in schema] if isinstance(schema, list) else schema
    out = {word: closed(one) for word, one in schema.items()}
    if isinstance(schema.get("properties"), dict):
        out["properties"] = {name: closed(one) for name, one in schema["properties"].items()}
        out.setdefault("additionalProperties", False)
    return out


WRONG: dict[str, list[Any]] = {
    "string": [1, ["a"], True],
    "integer": ["1", 1.5, True],
    "number": ["1.5", [1], False],
    "boolean": ["true", 1, 0],
    "array": [{}, "[]", 1],
    "object": [[], "{}", 1],
}


def changes(schema: Line, arguments: Line) -> Iterator[tuple[str, Line]]:
    """Changes of a call's arguments, each with its kind; some may be right all the same."""
    for name in schema.get("required", []):
        yield "missing", {one: arguments[one] for one in arguments if one != name}
    yield "unlisted", {**arguments, "no_such_argument": 1}
    for place, below in places(schema, arguments, ()):
        said = below.get("type")
        kind = "nested" if len(place) > 1 else "type"
        for value in WRONG.get(said, []) if isinstance(said, str) else []:
            yield ("1.5 for an integer" if value == 1.5 and said == "integer" else kind), put(arguments, place, value)
        yield "null", put(arguments, place, None)
        if "enum" in below:
            yield "enum", put(arguments, place, "no such option")
        found = at(arguments, place)
        if isinstance(found, list):
            yield "item", put(arguments, place, [*found, {"no": "such item"}])
        if isinstance(found, dict):
            yield "nested", put(arguments, place, {**found, "no_such_name": 1})


def places(schema: Any, value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Line]]:
    """The places of values within arguments, and their schemas."""
    if isinstance(value, dict):
        below = {name: one for name, one in schema.get("properties", {}).items() if name in value}
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        below = dict.fromkeys(range(min(1, len(value))), schema["items"])
    else:
        return
    for step, one in below.items():
        if isinstance(one, dict):
            yield (*place, step), one
            yield from places(one, value[step], (*place, step))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def put(value: Line, place: tuple[Any, ...], new: Any) -> Line:
    out = copy.deepcopy(value)
    at(out, place[:-1])[place[-1]] = new
    return out
