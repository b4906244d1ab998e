"""The result that is written for a row's completions."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gen.offline.parts import Result, carried
from gen.offline.rows import Row

if TYPE_CHECKING:
    from gen.completions import Completion


def result_of(row: Row, completions: Sequence["Completion"], *, several: bool, typed: bool) -> Result:
    """A row's result.

    Args:
        several: whether the job asks for a list of texts.
        typed: whether it has an output type.
    """
    result: Result = {"id": row.id}
    told = [_told(completion, typed) for completion in completions]
    if several:
        names = {"text": "texts", "value": "values", "finish_reason": "finish_reasons", "top_logprobs": "top_logprobs"}
        result |= {plural: [one[name] for one in told] for name, plural in names.items() if name in told[0]}
    else:
        result |= told[0]
    result |= {"tokens": sum(len(one.token_ids) for one in completions), "seed": completions[0].seed}
    return result | carried(row)


def _told(completion: "Completion", typed: bool) -> Result:
    told: Result = {"text": completion.text}
    if typed:
        from pydantic_core import to_jsonable_python

        told["value"] = to_jsonable_python(completion.value, inf_nan_mode="null")
    told["finish_reason"] = completion.finish_reason
    if completion.top_logprobs is not None:
        told["top_logprobs"] = [asdict(one) for one in completion.top_logprobs]
    return told
