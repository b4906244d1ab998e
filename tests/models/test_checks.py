"""Objects that are no model or no tokenizer are refused before they are used; the error says what to give instead."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models
from torch import nn
from transformers import LlamaForCausalLM

import gen
from tests.helpers import byte_tokenizer, encoder_tokenizer, tiny_encoder, tiny_model
from tests.models.exported.programs import exported

MODEL, TOKENIZER = tiny_model(), byte_tokenizer()
ENCODER, ENCODER_TOKENIZER = tiny_encoder(), encoder_tokenizer()
FAST = FastTokenizer(models.BPE())


class Wrapper(nn.Module):
    """Like DistributedDataParallel and similar wrappers, which need a process group: the model is its `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


NO_MODELS: list[tuple[Any, str]] = [
    (None, "got None"),
    ("path/to/model", r"got 'path/to/model'; to load .* use {load}\('path/to/model'\)"),
    (Path("model"), r"use {load}\('model'\)"),
    (nn.DataParallel(MODEL), "got DataParallel; a wrapper for training keeps the model as model.module: give that"),
    (Wrapper(MODEL), "got Wrapper; a wrapper for training keeps the model as model.module: give that"),
    (LlamaForCausalLM, r"got <class .*LlamaForCausalLM'>; give a model, as LlamaForCausalLM.from_pretrained\(path\)"),
    (gen.from_transformers(MODEL, TOKENIZER), "got TransformersModel; it is a model of gen already"),
    (SimpleNamespace(model=MODEL, tokenizer=TOKENIZER), r"of a pipeline give its parts: .*pipeline.model"),
    (exported(), "got ExportedProgram; for a program of torch.export use gen.from_exported"),
    (nn.Linear(2, 2), "got Linear"),
    (3, "got 3"),
    (["x" * 1000] * 1000, "got list"),
]
NO_TOKENIZERS: list[tuple[Any, str]] = [
    (None, r"got None; AutoTokenizer.from_pretrained\(path\) loads one"),
    ("path", "got 'path'; AutoTokenizer.from_pretrained"),
    (FAST, r"got Tokenizer; wrap it: transformers.PreTrainedTokenizerFast\(tokenizer_object=tokenizer"),
    (MODEL, r"got LlamaForCausalLM; the model comes first"),
    (type(TOKENIZER), "got <class"),
    (gen.from_transformers(MODEL, TOKENIZER).tokenizer, "got Tokenizer; AutoTokenizer"),
    (
        type("MistralCommonBackend", (), {"get_vocab": dict, "bos_token_id": 1})(),
        r"got MistralCommonBackend; AutoTokenizer.from_pretrained\(.+, mistral_format=False\) loads one",
    ),
    ({}, "got dict"),
    (3, "got 3"),
]
FUNCTIONS: dict[str, tuple[Any, Any, str]] = {
    "from_transformers": (MODEL, TOKENIZER, "gen.load"),
    "from_transformers_encoder": (ENCODER, ENCODER_TOKENIZER, "gen.load_encoder"),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("given", "message"), NO_MODELS, ids=lambda value: type(value).__name__)
def test_what_is_no_model_is_refused(function: str, given: Any, message: str) -> None:
    _, tokenizer, load = FUNCTIONS[function]
    wanted = f"{function} takes a loaded model of transformers, .*" + message.replace("{load}", load)
    with pytest.raises(gen.ArgumentError, match=wanted) as caught:
        getattr(gen, function)(given, tokenizer)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("function", [*FUNCTIONS, "from_exported"])
@pytest.mark.parametrize(("given", "message"), NO_TOKENIZERS, ids=lambda value: type(value).__name__)
def test_what_is_no_tokenizer_is_refused(function: str, given: Any, message: str) -> None:
    model = FUNCTIONS[function][0] if function in FUNCTIONS else exported()
    with pytest.raises(gen.ArgumentError, match=f"{function} takes the model's tokenizer, .*{message}") as caught:
        getattr(gen, function)(model, given)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_tokenizer_that_is_missing_is_asked_for_by_the_models_name(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FUNCTIONS[function][0]
    monkeypatch.setattr(model, "name_or_path", "some/name")
    with pytest.raises(gen.ArgumentError, match=r"got None; AutoTokenizer.from_pretrained\('some/name'\) loads one"):
        getattr(gen, function)(model)


def test_a_model_says_what_it_is_and_where_and_in_which_dtype() -> None:
    assert repr(gen.from_transformers(MODEL, TOKENIZER)) == "<LlamaForCausalLM on cpu (float32)>"
    assert repr(gen.from_transformers_encoder(ENCODER, ENCODER_TOKENIZER)) == "<BertModel on cpu (float32)>"
    assert repr(gen.from_exported(exported(), TOKENIZER)) == "<torch.export program on cpu (float32)>"
    demo = repr(gen.load("demo", dtype="bfloat16"))
    assert demo.startswith("<LlamaForCausalLM '")
    assert demo.endswith("models/demo' on cpu (bfloat16)>")


def test_swapped_arguments_are_told() -> None:
    for function, (model, tokenizer, _) in FUNCTIONS.items():
        with pytest.raises(gen.ArgumentError, match=rf"the arguments are swapped: {function}\(model, tokenizer\)"):
            getattr(gen, function)(tokenizer, model)


def test_a_processor_is_no_tokenizer_of_an_encoder_or_a_program() -> None:
    processor: Any = SimpleNamespace(tokenizer=TOKENIZER, image_processor=object())
    with pytest.raises(gen.ArgumentError, match=r"got SimpleNamespace; give processor\.tokenizer"):
        gen.from_transformers_encoder(ENCODER, processor)
    with pytest.raises(gen.ArgumentError, match=r"got SimpleNamespace; give processor\.tokenizer"):
        gen.from_exported(exported(), processor)
    with pytest.raises(gen.ModelError, match=r"give processor\.tokenizer instead of the processor"):
        gen.from_transformers(MODEL, processor)


@pytest.mark.parametrize("load", [gen.load, gen.load_encoder])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "give a directory, a Hub id as 'organisation/name', or 'demo', got None"),
        (3, "or 'demo', got 3"),
        ("", "or 'demo', got ''"),
        (b"demo", "or 'demo', got b'demo'"),
        (["demo"], r"or 'demo', got \['demo'\]"),
        (MODEL, r"or 'demo', got .*to use a model that is loaded already: gen.from_transformers\(model, tokenizer\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_path_is_refused(load: Any, given: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        load(given)


@pytest.mark.parametrize("path", ["~nobody-of-this-name/model", "x/" * 5000, "a\0b/c", "no such folder", "a//b/c\n"])
def test_a_path_that_cannot_be_is_refused_in_short(path: str) -> None:
    for load in (gen.load, gen.load_encoder, lambda path: gen.from_exported(path, TOKENIZER)):
        with pytest.raises(gen.ModelError, match=r"^(cannot look at|no directory|no file) ") as caught:
            load(path)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": 3}, "dtype must be a floating type such as 'float32' or 'bfloat16', got 3"),
        ({"dtype": "int8"}, "got 'int8'"),
        ({"dtype": [1] * 100}, r"got \[1, 1, 1, 1, 1, 1, \.\.\.\]"),
        ({"quantization_config": "int8"}, r"BitsAndBytesConfig\(load_in_8bit=True\) or .*, got 'int8'"),
        ({"trust_remote_code": "no"}, "trust_remote_code must be True or False, got 'no'"),
        ({"device": "cpu", "device_map": "auto"}, "give device for one device or device_map for several"),
    ],
    ids=repr,
)
def test_arguments_of_load_are_checked_first(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.load("demo", **arguments)


def test_ids_and_lengths_of_an_exported_program_may_be_of_any_library() -> None:
    length: Any = torch.tensor(20)
    eos: Any = torch.tensor([5, 6])
    model = gen.from_exported(exported(), TOKENIZER, eos_token_id=eos, context_length=length)
    assert (model.eos_token_ids, model.context_length) == ((5, 6), 20)
    with pytest.raises(gen.ArgumentError, match="eos_token_id has the token id 259; the vocabulary is 0 to 258"):
        gen.from_exported(exported(), TOKENIZER, eos_token_id=[259])
    with pytest.raises(gen.ArgumentError, match="context_length must be a whole number at least 2 and at most 64"):
        gen.from_exported(exported(), TOKENIZER, context_length="20")  # type: ignore[arg-type]
