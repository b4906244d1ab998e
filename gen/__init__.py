"""Text and structured data from local language models, on exactly the device that was asked for."""

from importlib import import_module
from types import ModuleType

from gen import samplers
from gen.decoding import generate, stream
from gen.devices import Placement
from gen.embedding import embed
from gen.errors import ArgumentError, DeviceError, GenError, ModelError, SamplingError
from gen.models.encoder import from_transformers_encoder, load_encoder
from gen.models.exported import from_exported
from gen.models.loading import from_transformers, load
from gen.streaming import Stream
from gen.texts import Completion

__all__ = [
    "ArgumentError",
    "Completion",
    "DeviceError",
    "GenError",
    "ModelError",
    "Placement",
    "SamplingError",
    "Stream",
    "embed",
    "from_exported",
    "from_transformers",
    "from_transformers_encoder",
    "generate",
    "load",
    "load_encoder",
    "samplers",
    "stream",
]


def __getattr__(name: str) -> ModuleType:
    """`gen.testing` is imported at its first use."""
    if name == "testing":
        return import_module("gen.testing")
    raise AttributeError(f"module 'gen' has no attribute {name!r}")
