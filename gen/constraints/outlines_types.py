"""Turns output types of Outlines 1 into gen's own, with the same meaning; Outlines is not imported."""

import sys
from typing import Any

from gen.constraints.output_types import choice, grammar, json_schema, regex
from gen.errors import ConstraintError, show

_MODULE = "outlines.types.dsl"


def as_own(output_type: Any) -> Any:
    """An output type, or gen's own instead of one of Outlines'.

    Raises:
        ConstraintError: gen has nothing like it.
    """
    kind = type(output_type)
    if not any(base.__module__ == _MODULE for base in kind.__mro__):
        return output_type
    if kind.__name__ == "JsonSchema":
        if output_type.whitespace_pattern is not None:
            raise ConstraintError(
                f"{show(output_type)}: gen writes whitespace as json.dumps does, and takes no whitespace_pattern; take "
                "gen.json_schema(schema, whitespace=...)."
            )
        return json_schema(output_type.schema)
    if kind.__name__ == "Choice":
        return choice(output_type.items)
    if kind.__name__ == "CFG":
        return grammar(output_type.definition)
    return regex(sys.modules[_MODULE].to_regex(output_type))
