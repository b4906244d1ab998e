"""Samplers, output types and speculation as JSON, for a manifest, and back.

Example: `list[Literal["a", "b"]]` is {"of": "builtins:list", "args": [{"literal": ["a", "b"]}]}, and a pydantic class
{"class": "my_module:Person"}, which workers import.
"""

import json
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from gen.errors import ArgumentError, show

if TYPE_CHECKING:
    from gen.loop.speculation.settings import Speculate

Described = dict[str, Any]

_BAN = "-inf"  # a bias that JSON has no number for
_SAMPLERS = {"GreedySampler": "greedy", "MultinomialSampler": "multinomial", "BeamSearchSampler": "beam_search"}


def describe_sampler(sampler: Any) -> list[Any] | None:
    """A gen sampler as its name and settings; None is the checkpoint's recommendation."""
    if sampler is None:
        return None
    from gen import samplers  # if there is a sampler, they have imported torch already

    name = _SAMPLERS.get(type(sampler).__name__)
    if name is None or type(sampler) is not getattr(samplers, name):
        raise ArgumentError(
            f"a job's sampler is written into its manifest: give gen.samplers.greedy, multinomial or beam_search, got "
            f"{show(sampler)}"
        )
    settings = {
        one.name: getattr(sampler, one.name)
        for one in fields(sampler)
        if one.init and getattr(sampler, one.name) != one.default
    }
    for key, value in settings.items():
        if hasattr(value, "shape"):
            raise ArgumentError(f"a job's sampler is written into its manifest: give {key} as a number, not a tensor.")
    if isinstance(bias := settings.get("logit_bias"), Mapping):
        settings["logit_bias"] = {key: _BAN if value == -math.inf else value for key, value in bias.items()}
    return [name, settings]


def made_sampler(described: list[Any] | None) -> Any:
    """The sampler; the inverse of `describe_sampler`, after its result went through JSON."""
    if described is None:
        return None
    from gen import samplers

    name, settings = described
    bias = settings.get("logit_bias")
    if isinstance(bias, Mapping):
        try:
            settings = {
                **settings,
                "logit_bias": {int(key): -math.inf if value == _BAN else value for key, value in bias.items()},
            }
        except ValueError:
            raise ArgumentError(f"logit_bias must have token ids for keys, got {show(bias)}") from None
    return getattr(samplers, name)(**settings)


def describe_speculate(speculate: Any) -> Any:
    """A value of `speculate` for `gen.generate`, as JSON."""
    if speculate is False or speculate == "auto":
        return speculate
    from gen.loop.speculation.settings import read_speculate

    return vars(read_speculate(speculate))


def made_speculate(described: Any) -> "Speculate":
    """The inverse of `describe_speculate`."""
    from gen.loop.speculation.settings import Speculation, read_speculate

    return Speculation(**described) if isinstance(described, dict) else read_speculate(described)


def describe_type(output_type: Any) -> Described | None:
    """An output type as JSON."""
    if output_type is None:
        return None
    if getattr(type(output_type), "__module__", "") == "gen.constraints.output_types":
        return _describe_text(output_type)
    if type(output_type).__name__ == "Pattern" and hasattr(output_type, "flags"):
        raise ArgumentError("give a pattern as gen.regex(...), with its flags in it, as (?i).")
    if type(output_type).__name__ == "Constraint":
        raise ArgumentError(
            "a job compiles its output type in every worker; give the type itself, without gen.compile."
        )
    return _describe_python(output_type)


def made_type(described: Described | None) -> Any:
    """The output type; the inverse of `describe_type`."""
    if described is None:
        return None
    import gen

    match next(iter(described.items())):
        case "regex", pattern:
            return gen.regex(pattern)
        case "choice", options:
            return gen.choice(options)
        case "grammar", lark:
            return gen.grammar(lark)
        case "json_schema", schema:
            return gen.json_schema(schema, **described.get("settings", {}))
        case "json_schema_of", of:
            return gen.json_schema(made_type(of), **described["settings"])
        case "string", text:
            return text
        case "text", settings:
            return gen.text(**settings)
        case "sequence", parts:
            return gen.sequence(*map(made_type, parts))
        case "either", branches:
            return gen.either(*map(made_type, branches))
        case "repeat", settings:
            return gen.repeat(**settings | {"part": made_type(settings["part"])})
        case "null", _:
            return type(None)
        case "literal", options:
            return Literal[tuple(options)]
        case "union", args:
            return Union[tuple(map(made_type, args))]  # noqa: UP007 - of types that are not known here
        case "of", origin:
            args = tuple(map(made_type, described["args"]))
            return imported(origin)[*args, ...] if described.get("any_length") else imported(origin)[args]
        case _, name:
            return imported(name)


def _describe_text(output_type: Any) -> Described:
    """The results of gen.regex, gen.choice and the like, as JSON."""
    given = vars(output_type)
    match type(output_type).__name__:
        case "Regex":
            return {"regex": given["pattern"]}
        case "Grammar":
            return {"grammar": given["lark"]}
        case "JsonSchema":
            settings = {name: given[name] for name in ("closed", "whitespace")}
            if given["python_type"] is not None:
                settings["required"] = given["required"]
                return {"json_schema_of": describe_type(given["python_type"]), "settings": settings}
            return {"json_schema": given["schema"], "settings": settings}
        case "Text":
            return {"text": given}
        case "Sequence":
            return {"sequence": [_describe_part(part) for part in given["parts"]]}
        case "Either":
            return {"either": [_describe_part(part) for part in given["branches"]]}
        case "Repeat":
            return {"repeat": given | {"part": _describe_part(given["part"])}}
        case "Choice":
            for option in given["options"].values():
                if not isinstance(option, str | int | float | list | dict | None):
                    raise ArgumentError(f"a job's choice is written into its manifest as JSON; it has {show(option)}.")
            return {"choice": list(given["options"].values())}
    raise ArgumentError(f"a job's output type is written into its manifest, which has no form for {show(output_type)}.")


def _describe_part(part: Any) -> Described:
    """A part of a composed type: a string, or a type."""
    described = {"string": part} if isinstance(part, str) else describe_type(part)
    assert described is not None  # a part is never None; tells mypy
    return described


def _describe_python(given: Any) -> Described:
    origin = get_origin(given)
    if given is None or given is type(None):
        return {"null": True}
    if origin is Literal:
        if not all(isinstance(one, str | int | None) for one in get_args(given)):
            raise ArgumentError(f"a job's output type is written into its manifest as JSON; it has {show(given)}.")
        return {"literal": list(get_args(given))}
    if origin in (Union, types.UnionType):
        return {"union": [_describe_python(arg) for arg in get_args(given)]}
    if isinstance(origin, type):
        args = [arg for arg in get_args(given) if arg is not Ellipsis]
        described: Described = {"of": _path_of(origin), "args": [_describe_python(arg) for arg in args]}
        return described | ({"any_length": True} if Ellipsis in get_args(given) else {})
    if isinstance(given, type):
        return {"class": _path_of(given)}
    raise ArgumentError(
        f"a job's output type is written into its manifest; of {show(given)} make a field of a pydantic class."
    )


def _path_of(kind: type) -> str:
    """Where other processes import a class from."""
    module, name = kind.__module__, kind.__qualname__
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or found is not kind:
        raise ArgumentError(
            f"workers import the output type, and {module}.{name} cannot be imported: move it to the top of a module "
            "of its own, and import it from there."
        )
    return f"{module}:{name}"


def imported(path: str) -> Any:
    """A class by the path of its description."""
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"the output type {path} cannot be imported here: {error}") from error
    return found


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are after JSON."""
    read = {}
    for name, value in settings.items():
        try:
            read[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(
                f"a job's settings are written into its manifest as JSON, which has no {name}={show(value)}: {error}"
            ) from error
    return read
