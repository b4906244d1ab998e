"""Text and structured data from local language models, on exactly the device that you ask for.

Each name is imported when it is first used, so `import gen` takes milliseconds and does not wait for torch.
"""

from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# isort: off
if TYPE_CHECKING:  # "x as x" says that a name is for users; `_HOMES` has the same names for when they are used
    from gen import samplers as samplers
    from gen.api import agenerate as agenerate, astream as astream, generate as generate, stream as stream
    from gen.completions import (
        Completion as Completion,
        FieldScore as FieldScore,
        Receipt as Receipt,
        StreamEvent as StreamEvent,
        ToolCallDelta as ToolCallDelta,
        TopLogprobs as TopLogprobs,
    )
    from gen.constraints.compiling import compile as compile
    from gen.constraints.constraint import Constraint as Constraint
    from gen.constraints.describing import describe as describe
    from gen.constraints.output_types import (
        choice as choice,
        either as either,
        grammar as grammar,
        json_schema as json_schema,
        regex as regex,
        repeat as repeat,
        sequence as sequence,
        text as text,
    )
    from gen.devices import Placement as Placement
    from gen.embedding.embed import embed as embed
    from gen.embedding.loading import (
        from_transformers_encoder as from_transformers_encoder,
        load_encoder as load_encoder,
    )
    from gen.engine import Engine as Engine
    from gen.errors import (
        ArgumentError as ArgumentError,
        BatchError as BatchError,
        ConstraintError as ConstraintError,
        ContextError as ContextError,
        DeviceError as DeviceError,
        EngineClosed as EngineClosed,
        EngineFull as EngineFull,
        FixedError as FixedError,
        GenError as GenError,
        IncompleteError as IncompleteError,
        Interrupted as Interrupted,
        ModelError as ModelError,
        NoTokenError as NoTokenError,
        ResultError as ResultError,
        SamplingError as SamplingError,
        UnknownArgumentError as UnknownArgumentError,
        ValueRefusedError as ValueRefusedError,
    )
    from gen.loop.engine_thread import EngineStats as EngineStats
    from gen.loop.prefixes.prefix import Prefix as Prefix, prefix as prefix
    from gen.loop.speculation.settings import Speculation as Speculation
    from gen.models.exllama.exllamav2 import from_exllamav2 as from_exllamav2
    from gen.models.exllama.exllamav3 import from_exllamav3 as from_exllamav3
    from gen.models.exported.program import from_exported as from_exported
    from gen.models.loading import from_transformers as from_transformers, load as load
    from gen.offline.iterating import generate_iter as generate_iter
    from gen.offline.job import BatchReport as BatchReport, run_batch as run_batch
    from gen.receipts.checks import Difference as Difference, Verification as Verification
    from gen.receipts.diffing import Compared as Compared, Diff as Diff, diff as diff
    from gen.receipts.verifying import verify as verify
    from gen.scoring.scorer import Score as Score
    from gen.scoring.scores import classify as classify, score as score
    from gen.calls.rollouts import Rollouts as Rollouts
    from gen.calls.streams import Stream as Stream
    from gen.tools.calls import ToolCall as ToolCall, ToolCalls as ToolCalls, tool_calls as tool_calls

# isort: on
_HOMES = {
    "api": ["agenerate", "astream", "generate", "stream"],
    "constraints.compiling": ["compile"],
    "constraints.constraint": ["Constraint"],
    "constraints.describing": ["describe"],
    "constraints.output_types": [
        "choice",
        "either",
        "grammar",
        "json_schema",
        "regex",
        "repeat",
        "sequence",
        "text",
    ],
    "devices": ["Placement"],
    "embedding.embed": ["embed"],
    "embedding.loading": ["from_transformers_encoder", "load_encoder"],
    "engine": ["Engine"],
    "errors": [
        "ArgumentError",
        "BatchError",
        "ConstraintError",
        "ContextError",
        "DeviceError",
        "EngineClosed",
        "EngineFull",
        "FixedError",
        "GenError",
        "IncompleteError",
        "Interrupted",
        "ModelError",
        "NoTokenError",
        "ResultError",
        "SamplingError",
        "UnknownArgumentError",
        "ValueRefusedError",
    ],
    "loop.engine_thread": ["EngineStats"],
    "loop.prefixes.prefix": ["Prefix", "prefix"],
    "loop.speculation.settings": ["Speculation"],
    "completions": ["Completion", "FieldScore", "Receipt", "StreamEvent", "ToolCallDelta", "TopLogprobs"],
    "models.exllama.exllamav2": ["from_exllamav2"],
    "models.exllama.exllamav3": ["from_exllamav3"],
    "models.exported.program": ["from_exported"],
    "models.loading": ["from_transformers", "load"],
    "offline.iterating": ["generate_iter"],
    "offline.job": ["BatchReport", "run_batch"],
    "receipts.checks": ["Difference", "Verification"],
    "receipts.diffing": ["Compared", "Diff", "diff"],
    "receipts.verifying": ["verify"],
    "scoring.scorer": ["Score"],
    "scoring.scores": ["classify", "score"],
    "calls.rollouts": ["Rollouts"],
    "calls.streams": ["Stream"],
    "tools.calls": ["ToolCall", "ToolCalls", "tool_calls"],
}
__all__ = sorted(["samplers", *chain.from_iterable(_HOMES.values())])


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, or import a module of the package."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home:
        value = globals()[name] = getattr(import_module(f"gen.{home}"), name)
        return value
    if not name.startswith("_") and find_spec(f"gen.{name}"):
        return import_module(f"gen.{name}")
    raise AttributeError(f"module 'gen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
