"""Tiny models and tokenizers that the tests share: random weights, a token for each byte, scripted texts."""

from tests.helpers.architectures import HYBRIDS, OTHERS, SHAPES
from tests.helpers.machines import needs_float16_products_that_agree, needs_kernels_that_agree
from tests.helpers.scripted_model import ScriptedModel, ScriptedRows
from tests.helpers.tiny_encoders import WORDS, encoder_tokenizer, tiny_encoder
from tests.helpers.tiny_models import by_transformers, plain_choices, plain_greedy, stored, tiny_model
from tests.helpers.tokenizers import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    OTHER_EOS,
    byte_tokenizer,
    bytes_to_characters,
    spaced_tokenizer,
)

__all__ = [
    "BOS",
    "CHAT_TEMPLATE",
    "EOS",
    "HYBRIDS",
    "OTHERS",
    "OTHER_EOS",
    "SHAPES",
    "WORDS",
    "ScriptedModel",
    "ScriptedRows",
    "by_transformers",
    "byte_tokenizer",
    "bytes_to_characters",
    "encoder_tokenizer",
    "needs_float16_products_that_agree",
    "needs_kernels_that_agree",
    "plain_choices",
    "plain_greedy",
    "spaced_tokenizer",
    "stored",
    "tiny_encoder",
    "tiny_model",
]
