"""Samplers, output types and speculation as JSON, for a manifest, and back.

Example: `list[Literal["a", "b"]]` is {"of": "builtins:list", "args": [{"literal": ["a", "b"]}]}, a pydantic class
{"class": "my_module:Person"}, which workers import, and `gen.regex("a+")` a call: {"call": "regex", "parts": [],
"settings": {"pattern": "a+"}}.
"""

import json
import math
import re
import sys
import types
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from gen.errors import ArgumentError, show

if TYPE_CHECKING:
    from gen.loop.speculation.settings import Speculate

Described = dict[str, Any]

_BAN = "-inf"  # a bias that JSON has no number for
_CALLS = {"regex", "choice", "grammar", "json_schema", "text", "sequence", "either", "repeat"}


def describe_sampler(sampler: Any) -> list[Any] | None:
    """A gen sampler as its name and settings, also if it is given so; None is the checkpoint's recommendation."""
    if sampler is None or (isinstance(sampler, list) and [*map(type, sampler)] == [str, dict]):
        return sampler
    from gen.receipts.writing import changed  # if there is a sampler, it has imported torch already
    from gen.samplers.kinds import NAMES

    if (name := NAMES.get(type(sampler))) is None:
        raise ArgumentError(
            f"a job's sampler is written into its manifest: give gen.samplers.greedy, multinomial or beam_search, got "
            f"{show(sampler)}"
        )
    settings = changed(sampler)
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
        return _describe_call(output_type)
    if type(output_type).__name__ == "Pattern" and hasattr(output_type, "flags"):
        raise ArgumentError("give a pattern as gen.regex(...), with its flags in it, as (?i).")
    if type(output_type).__name__ == "Constraint":
        raise ArgumentError(
            "a job compiles its output type in every worker; give the type itself, without gen.compile."
        )
    return _describe_python(output_type)


def described_call(function: str, *parts: Any, **settings: Any) -> Described:
    """An output type as the call of the function of `gen` that makes it.

    Args:
        parts: types that it is made of, described, and strings.
        settings: values that JSON has.
    """
    return {"call": function, "parts": list(parts), "settings": settings}


def made_type(described: Any) -> Any:
    """The output type; the inverse of `describe_type`."""
    match described:
        case None | str():
            return described
        case {"call": function, "parts": parts, "settings": settings} if function in _CALLS:
            import gen

            return getattr(gen, function)(*map(made_type, parts), **settings)
        case {"null": _}:
            return type(None)
        case {"literal": options}:
            return Literal[tuple(options)]
        case {"union": args}:
            return Union[tuple(map(made_type, args))]  # noqa: UP007 - of types that are not known here
        case {"of": origin, "args": args}:
            made = tuple(map(made_type, args))
            return imported(origin)[*made, ...] if described.get("any_length") else imported(origin)[made]
        case {"class": name}:
            return imported(name)
    raise ArgumentError(f"there is no output type that is described as {show(described)}")


def _describe_call(output_type: Any) -> Described:
    """The results of gen.regex, gen.choice and the like."""
    name, given = type(output_type).__name__, dict(vars(output_type))
    function, parts = re.sub("(?<=.)(?=[A-Z])", "_", name).lower(), list[Any]()
    if name in ("Sequence", "Either"):
        [parts], given = given.values(), {}
    elif name == "Repeat":
        parts = [given.pop("part")]
    elif name == "Choice":
        given = {"options": list(given["options"].values())}
        for option in given["options"]:
            if not isinstance(option, str | int | float | list | dict | None):
                raise ArgumentError(f"a job's choice is written into its manifest as JSON; it has {show(option)}.")
    elif name == "JsonSchema":
        of_type = given["python_type"] is not None
        parts = [given["python_type"]] if of_type else []
        given = {key: given[key] for key in ("closed", "whitespace", "required" if of_type else "schema")}
    return described_call(
        function, *(part if isinstance(part, str) else describe_type(part) for part in parts), **given
    )


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
    if not name or not module or module.startswith("."):
        raise ArgumentError(
            f"an output type is named by its whole module and its class, as people:Person, got {show(path)}"
        )
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module's own lines may raise any
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise ArgumentError(f"the output type {path} cannot be imported here: {kind}{error}") from error
    return found


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are after JSON."""
    read = {}
    for name, value in settings.items():
        try:
            read[name] = json.loads(json.dumps(value, default=_of_arrays, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(
                f"a job's settings are written into its manifest as JSON, which has no {name}={show(value)}: {error}"
            ) from error
    return read


def _of_arrays(value: Any) -> Any:
    """A number of numpy or torch, or an array or tensor of them, as JSON has it."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} is no value of JSON")
    return value.tolist()
