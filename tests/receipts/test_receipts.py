"""Receipts: what they say of a call, that files keep all of it, and what cannot be written."""

import copy
import datetime
import json
import math
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from pydantic import BaseModel, field_validator

import gen
from gen.receipts.digests import weights_digest
from gen.receipts.reading import changes, read_receipt
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo

PROMPT = "Once upon a time"
SAMPLERS = gen.samplers


def completion(model: Any, output_type: Any = None, **settings: Any) -> gen.Completion:
    given: dict[str, Any] = {"max_new_tokens": 12, "seed": 3, "shorten": True, **settings}
    made: gen.Completion = gen.generate(model, PROMPT, output_type, details=True, **given)
    return made


CALLS: list[tuple[Any, Mapping[str, Any]]] = [
    (None, {"sampler": SAMPLERS.greedy(repetition_penalty=1.3)}),
    (None, {"sampler": SAMPLERS.multinomial(temperature=0.7, top_p=0.9, bad_words=["the"], min_new_tokens=4)}),
    (None, {"sampler": SAMPLERS.multinomial(logit_bias={5: -math.inf, 7: 1.5})}),
    (None, {"stop": ["b", re.compile("[xq]", re.IGNORECASE)], "include_stop": True}),
    (None, {"eos_token_id": [5, 6], "max_new_tokens": 1_000_000}),
    (dict[str, int], {}),
    (datetime.date, {}),
    (gen.choice(["yes", "no"]), {}),
    (gen.text(without=["x"], max_chars=9), {}),
    (gen.grammar('start: "a" start?'), {}),
    (gen.sequence("a ", gen.either(int, "x"), gen.repeat(gen.regex("[a-z]+"), ", ", 1, 3)), {}),
    *[(gen.tool_calls([{"name": "f"}], "f", format=form), {"max_new_tokens": 99}) for form in ("glm", "pythonic")],
]


@pytest.mark.parametrize(("output_type", "settings"), CALLS)
def test_a_receipt_leads_back_to_the_request(
    demo: Any, output_type: Any, settings: Mapping[str, Any], tmp_path: Path
) -> None:
    made = completion(demo, output_type, **settings)
    requests = [made._made[0]]
    receipt = made.receipt
    gen.Receipt.dump([receipt, receipt], tmp_path / "receipts")
    assert gen.Receipt.load(tmp_path / "receipts") == [receipt, receipt]
    assert "\n" not in str(receipt)
    requests.append(read_receipt(demo, gen.Receipt.read(str(receipt))))
    first, second = ({name: value for name, value in vars(one).items() if name not in ELSEWHERE} for one in requests)
    assert first == second
    keys = [request.constraint and request.constraint.key for request in requests]
    assert keys[0] == keys[1]
    assert not changes(demo, receipt)


# compared by what they say, or no part of what shapes a text
ELSEWHERE = {"constraint", "draft", "sampler", "stops", "write_receipt", "number", "score_fields", "retry", "attempt"}


def test_what_a_receipt_says(demo: Any) -> None:
    made = completion(demo, sampler=SAMPLERS.multinomial(2, temperature=0.5))[1]  # type: ignore[index]
    receipt = made.receipt
    assert (receipt.token_ids, receipt.logprobs, receipt.text) == (made.token_ids, made.logprobs, made.text)
    assert (receipt.seed, receipt.sample) == (SAMPLERS.sample_seed(3, 1), 1)
    assert receipt.sampler == {"name": "multinomial", "temperature": 0.5}
    assert receipt.settings["limit"] == 12
    assert receipt.model["dtype"] == "float32"
    assert receipt.versions["torch"] == version("torch")


def test_a_context_bounds_the_limit(demo: Any) -> None:
    room = demo.context_length - len(demo.tokenizer.encode(PROMPT))
    made = completion(demo, max_new_tokens=demo.context_length, stop=" ").receipt
    assert (made.settings["limit"], made.settings["bound"]) == (room, "context")


def test_the_digest_follows_the_weights() -> None:
    model: Any = short_demo()
    made = completion(model, max_new_tokens=2)
    before = made.receipt
    assert before.model == completion(short_demo(), max_new_tokens=2).receipt.model
    with torch.no_grad():
        next(model.hf_model.parameters()).view(-1)[0] += 1e-3
    with pytest.raises(gen.ArgumentError, match="changed since"):
        _ = made.receipt
    after = completion(model, max_new_tokens=2).receipt
    assert after.model["weights"] != before.model["weights"]
    assert [*changes(model, before)] == ["weights"]


class Quantised(torch.Tensor):
    """A weight in whole numbers with a scale; like torchao's, it can be multiplied with, and not be viewed."""

    numbers: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, scale: torch.Tensor) -> "Quantised":
        made: Quantised = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)
        made.numbers, made.scale = numbers, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> "Quantised":
        return Quantised(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if op is torch.ops.aten.detach.default:
            return Quantised(args[0].numbers, args[0].scale)
        raise NotImplementedError(f"{op}")


def test_the_digest_of_quantised_weights_is_that_of_their_parts() -> None:
    model: Any = short_demo()
    digests = [weights_digest(model)]
    for scale in (1.0, 2.0):
        weight = Quantised(torch.ones(2, 2, dtype=torch.int8), torch.tensor([scale]))
        model.hf_model.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)
        digests += [weights_digest(model), weights_digest(model)]
    assert digests[1] == digests[2] and digests[3] == digests[4]
    assert len({*digests}) == 3


def test_weights_that_were_put_elsewhere_have_another_digest_and_texts_before_them_no_receipt() -> None:
    model: Any = short_demo()
    made, before = completion(model, max_new_tokens=2), weights_digest(model)
    weight = model.hf_model.model.norm.weight
    weight.data = weight.data * 2  # torch counts no change of the parameter
    assert weights_digest(model) != before
    with pytest.raises(gen.ArgumentError, match="the model's weights have been changed since the call"):
        _ = made.receipt


def test_receipts_tell_which_adapters_were_active() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # PEFT reads it
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        both: Any = get_peft_model(tiny_model("llama"), config, adapter_name="one").eval()
        both.add_adapter("other", config)
    model = gen.from_transformers(both, byte_tokenizer())
    made, typed = completion(model, max_new_tokens=20), completion(model, output_type=int, shorten=True)
    receipt = made.receipt
    assert receipt.model["adapters"].startswith("one (")  # type: ignore[union-attr]
    assert gen.Receipt.read(str(receipt)) == receipt
    assert gen.verify(model, receipt).changed == {}

    def told() -> tuple[str | None, str | None]:
        """What is told of the adapters, and nothing else is blamed."""
        found = gen.verify(model, receipt)
        assert found.kind == "different" and found.changed.keys() == {"adapters"}
        assert found.changed == gen.diff([receipt], model).texts[0].changed
        return found.changed["adapters"]

    both.set_adapter("other")
    was, now = told()
    assert was == receipt.model["adapters"] and now is not None and now.startswith("other (")
    with pytest.raises(gen.ArgumentError, match="or other adapters are active"):
        _ = completion(model, max_new_tokens=2), made.receipt
    with pytest.raises(gen.ArgumentError, match="or other adapters are active"):
        _ = typed.fields
    with both.disable_adapter():
        assert told()[1] is None
    both.set_adapter("one")
    assert made.receipt == receipt
    for layer in both.modules():
        if hasattr(layer, "scale_layer"):
            layer.scale_layer(0.25)
    was, now = told()
    assert now is not None and now.startswith("one (") and now != was
    assert "adapters" not in completion(short_demo(), max_new_tokens=2).receipt.model


def test_what_cannot_be_written_is_named(demo: Any) -> None:
    class Own(gen.samplers.MultinomialSampler):
        pass

    for settings, named in (
        ({"logits_processors": [lambda token_ids, lengths, logits: logits]}, "logits processors"),
        ({"sampler": Own()}, "the sampler Own"),
        ({"sampler": SAMPLERS.multinomial(temperature=torch.tensor([0.5]))}, "tensors"),
    ):
        with pytest.raises(gen.ArgumentError, match=named):
            _ = completion(demo, max_new_tokens=2, **settings).receipt
    made = completion(demo, max_new_tokens=2)
    with gen.Engine(demo) as engine:
        bare = engine.generate(PROMPT, details=True, receipts=False, seed=made.seed, max_new_tokens=2)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), bare):
        assert other == made
        with pytest.raises(gen.ArgumentError, match="only the completion itself"):
            _ = other.receipt


def test_what_is_no_receipt(demo: Any, tmp_path: Path) -> None:
    good = json.loads(str(completion(demo, max_new_tokens=2).receipt))
    for given, message in (
        ("{", "no receipt"),
        ({"text": "a"}, "no receipt"),
        ({**good, "format": 2}, "format 2"),
        ({**good, "token_ids": ["a", "b"]}, "token_ids must be"),
        ({**good, "logprobs": []}, "2 tokens and 0"),
        ({"format": 1}, "no whole receipt"),
    ):
        with pytest.raises(gen.ArgumentError, match=message):
            gen.Receipt.read(given)
    (tmp_path / "receipts").write_text("\n{}\n")
    with pytest.raises(gen.ArgumentError, match="line 2"):
        gen.Receipt.load(tmp_path / "receipts")
    for given, message in (
        ({**good, "token_ids": [0, 10**6]}, "tokenizer has them"),
        ({**good, "sampler": {"name": "os.system"}}, "no sampler"),
        ({**good, "output_type": ["json"]}, "no output type"),
        ({**good, "settings": {}}, "not whole"),
    ):
        with pytest.raises(gen.ArgumentError, match=message):
            read_receipt(demo, gen.Receipt.read(given))


def test_texts_that_are_no_values_and_those_that_did_not_end_have_receipts(demo: Any) -> None:
    """The text of an error is verified as it ended; one that was stopped from outside, as a beginning."""
    with pytest.raises(gen.IncompleteError) as cut:
        completion(demo, dict[str, int], max_new_tokens=9, shorten=False)
    with pytest.raises(gen.IncompleteError) as stopped:
        completion(demo, gen.regex("[a-z ]{30}"), max_new_tokens=40, stop=" ", shorten=False)
    with pytest.raises(gen.ValueRefusedError) as refused:
        completion(demo, Refusing)
    errors = [one.value.completion for one in (cut, stopped, refused)]
    assert [one.finish_reason for one in errors] == ["length", "stop", "eos"]
    late = completion(demo, max_new_tokens=900, eos_token_id=[], max_time=0.2)
    stream = gen.stream(demo, PROMPT, seed=3, max_new_tokens=100, eos_token_id=[])
    next(stream)
    with pytest.raises(gen.ArgumentError, match="has not ended"):
        _ = stream.so_far().receipt
    stream.close()
    with gen.Engine(demo, rows=1) as engine:
        growing = engine.submit(PROMPT, seed=3, max_new_tokens=900, eos_token_id=[])
        next(growing)
        growing.close()
        begun = growing.so_far()
    beginnings = [late, stream.so_far(), begun]
    assert [one.finish_reason for one in beginnings] == ["timeout", "cancelled", "cancelled"]
    receipts = [one.receipt for one in [*errors, *beginnings]]
    assert all(one.token_ids for one in receipts)
    assert [one.kind for one in gen.verify(demo, receipts)] == ["equal"] * 6
    wrong = [replace(one, token_ids=[5, *one.token_ids[1:]]) for one in receipts]
    assert [(one.kind, one.at) for one in gen.verify(demo, wrong)] == [("different", 0)] * 6


class Refusing(BaseModel):
    a: bool

    @field_validator("a")
    @classmethod
    def refuse(cls, value: bool) -> bool:
        raise ValueError("never")
