"""Text and structured data from local language models, on exactly the device that you ask for.

Each name is imported when it is first used, so `import gen` takes milliseconds and does not wait for torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gen import samplers, testing
    from gen.api import generate, stream
    from gen.asynchronous import agenerate, astream
    from gen.completions import Completion, StreamEvent, ToolCallDelta, TopLogprobs
    from gen.constraints.compiling import compile
    from gen.constraints.constraint import Constraint
    from gen.constraints.output_types import choice, either, grammar, json_schema, regex, repeat, sequence, text
    from gen.devices import Placement
    from gen.embedding.embed import embed
    from gen.embedding.loading import from_transformers_encoder, load_encoder
    from gen.engine import Engine
    from gen.errors import (
        ArgumentError,
        BatchError,
        ConstraintError,
        DeviceError,
        EngineClosed,
        EngineFull,
        GenError,
        IncompleteError,
        Interrupted,
        ModelError,
        SamplingError,
        ValueRefusedError,
    )
    from gen.loop.engine_thread import EngineStats
    from gen.loop.prefixes.prefix import Prefix, prefix
    from gen.loop.speculation.settings import Speculation
    from gen.models.exllama.exllamav2 import from_exllamav2
    from gen.models.exllama.exllamav3 import from_exllamav3
    from gen.models.exported.program import from_exported
    from gen.models.loading import from_transformers, load
    from gen.offline.iterating import generate_iter
    from gen.offline.job import BatchReport, run_batch
    from gen.scoring.scorer import Score
    from gen.scoring.scores import classify, score
    from gen.streaming import Stream
    from gen.tools.calls import tool_calls
    from gen.tools.values import ToolCall, ToolCalls

__all__ = [
    "ArgumentError",
    "BatchError",
    "BatchReport",
    "Completion",
    "Constraint",
    "ConstraintError",
    "DeviceError",
    "Engine",
    "EngineClosed",
    "EngineFull",
    "EngineStats",
    "GenError",
    "IncompleteError",
    "Interrupted",
    "ModelError",
    "Placement",
    "Prefix",
    "SamplingError",
    "Score",
    "Speculation",
    "Stream",
    "StreamEvent",
    "ToolCall",
    "ToolCallDelta",
    "ToolCalls",
    "TopLogprobs",
    "ValueRefusedError",
    "agenerate",
    "astream",
    "choice",
    "classify",
    "compile",
    "either",
    "embed",
    "from_exllamav2",
    "from_exllamav3",
    "from_exported",
    "from_transformers",
    "from_transformers_encoder",
    "generate",
    "generate_iter",
    "grammar",
    "json_schema",
    "load",
    "load_encoder",
    "prefix",
    "regex",
    "repeat",
    "run_batch",
    "samplers",
    "score",
    "sequence",
    "stream",
    "testing",
    "text",
    "tool_calls",
]

_HOMES = {
    "api": ["generate", "stream"],
    "asynchronous": ["agenerate", "astream"],
    "constraints.compiling": ["compile"],
    "constraints.constraint": ["Constraint"],
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
        "DeviceError",
        "EngineClosed",
        "EngineFull",
        "GenError",
        "IncompleteError",
        "Interrupted",
        "ModelError",
        "SamplingError",
        "ValueRefusedError",
    ],
    "loop.engine_thread": ["EngineStats"],
    "loop.prefixes.prefix": ["Prefix", "prefix"],
    "loop.speculation.settings": ["Speculation"],
    "completions": ["Completion", "StreamEvent", "ToolCallDelta", "TopLogprobs"],
    "models.exllama.exllamav2": ["from_exllamav2"],
    "models.exllama.exllamav3": ["from_exllamav3"],
    "models.exported.program": ["from_exported"],
    "models.loading": ["from_transformers", "load"],
    "offline.iterating": ["generate_iter"],
    "offline.job": ["BatchReport", "run_batch"],
    "scoring.scorer": ["Score"],
    "scoring.scores": ["classify", "score"],
    "streaming": ["Stream"],
    "tools.calls": ["tool_calls"],
    "tools.values": ["ToolCall", "ToolCalls"],
}


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
