"""Small constraints with large automata are refused or compiled within 500 MB and 10 seconds of CPU time (mostly 2).

All run in one separate process, whose memory and time the operating system tells.
"""

import json
import subprocess
import sys
import textwrap
from functools import cache
from typing import Any

import pytest

SCRIPT = textwrap.dedent(
    """
    import json, resource, sys, time
    from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
    from gen.constraints.automata.regexes import choice_table, regex_table
    from gen.constraints.schema import schema_grammar, schema_table

    def schema(value):
        return lambda: schema_table(value, closed=True, whitespace="line")

    def grammar(value):
        return lambda: schema_grammar(value, closed=True, whitespace="line")

    def chain(word, levels):
        inner = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
        return {"$ref": "#/$defs/d0", "$defs": {**inner, f"d{levels}": {"type": "object", "properties": {"a": True}}}}

    def nested(levels):
        value = {"type": "string"}
        for _ in range(levels):
            value = {"type": "object", "properties": {"a": value, "b": value}}
        return value

    def pairs(levels):
        defs = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
                for n in range(levels)}
        return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "null"}}}

    def some_of(count):
        return {"oneOf": [{"type": "object", "properties": {f"p{n}": {"type": "string"}}, "required": [f"p{n}"]}
                          for n in range(count)]}

    cases = {
        "": lambda: None,  # for the memory at the start
        "the letter 17 places before the end": lambda: regex_table("(a|b)*a(a|b){16}"),
        "any 100000 characters": lambda: regex_table(".{0,100000}"),
        "repeats of repeats": lambda: regex_table("((a?){1000}){1000}"),
        "repeats of nothing": lambda: regex_table("(((){1000}){1000}){1000}"),
        "sets of many states": lambda: regex_table("(.{0,500}b){0,50}"),
        "backtracking": lambda: regex_table("(a*)*b(a|aa)+(.*.*)*c"),
        "Unicode words": lambda: regex_table(r"\\W{1,200}"),
        "a choice of 50000": lambda: choice_table([f"option {n * 7919}" for n in range(50000)]),
        "maxLength 100000": schema({"type": "string", "maxLength": 100000}),
        "minLength 100000": schema({"type": "string", "minLength": 100000}),
        "an enum of 50000": schema({"enum": [f"value {n * 7919}" for n in range(50000)]}),
        "an enum of 50000 beside a type": schema({"type": "integer", "minimum": 5, "enum": list(range(50000))}),
        "40 levels of doubled allOf": schema(chain("allOf", 40)),
        "40 levels of doubled anyOf": schema(chain("anyOf", 40)),
        "40 levels of doubled oneOf": schema(chain("oneOf", 40)),
        "14 levels of two properties": schema(nested(14)),
        "40 levels of references": schema(pairs(40)),
        "500 levels": schema(json.loads('{"items":' * 490 + '{}' + '}' * 490)),
        "200 alternatives": schema(some_of(200)),
        "anyOf times anyOf": schema({"allOf": [{"anyOf": [{"minLength": n} for n in range(30)]}] * 6}),
        "1000 optional properties": schema({"properties": {f"p{n}": {"type": "boolean"} for n in range(1000)}}),
        "maxItems 100000": schema({"type": "array", "items": {"type": "integer"}, "maxItems": 100000}),
        "maxProperties 5000": schema({"type": "object", "maxProperties": 5000}),
        "a pattern that backtracks": schema({"type": "string", "pattern": "^(a+)+$", "enum": ["a" * 40 + "b"]}),
        "multipleOf 999983": schema({"type": "integer", "multipleOf": 999983}),
        "a hundred patterns": schema({"allOf": [{"pattern": f".{{{n}}}a.*b{{{n}}}"} for n in range(100)]}),
        "a grammar of 40 levels of doubled allOf": grammar(chain("allOf", 40)),
        "a grammar of 40 levels of references": grammar(pairs(40)),
        "a grammar of 200 alternatives": grammar(some_of(200)),
        "a grammar of 1000 optional properties": grammar({"properties": {f"p{n}": {} for n in range(1000)}}),
        "a grammar of 100000 items": grammar({"type": "array", "items": {"type": "integer"}, "maxItems": 100000}),
        "a grammar of an enum of 50000": grammar({"enum": [f"value {n * 7919}" for n in range(50000)]}),
    }
    for name, make in cases.items():
        before = time.process_time()
        try:
            result = make()
            outcome = len(result.next) if hasattr(result, "next") else "made"
        except (Empty, TooLarge, Unsupported) as error:
            outcome = type(error).__name__
        seconds = time.process_time() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        print(json.dumps([name, outcome, seconds, peak]), flush=True)
    """
)
NAMES = [line.split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "')][1:]


@cache
def outcomes() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=True)
    (_, _, _, start), *rest = map(json.loads, done.stdout.splitlines())
    return {name: (outcome, seconds, peak - start) for name, outcome, seconds, peak in rest}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_blow_up_ends_within_10_seconds_and_500_mb(name: str) -> None:
    outcome, seconds, megabytes = outcomes()[name]
    assert (outcome == "Empty") == (name in ("a pattern that backtracks", "40 levels of doubled oneOf"))
    assert seconds < 10, outcome
    assert megabytes < 500, outcome
