"""Scoring: the oracle is the model's own log-softmax in float64, of each text alone."""

import math
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Any, Literal

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from torch import Tensor
from typing_extensions import TypeAliasType

import gen
import gen.scoring.scorer
from gen.scoring.scorer import Scorer
from tests.helpers import HYBRIDS, OTHERS, SHAPES, ScriptedModel, byte_tokenizer, tiny_model
from tests.helpers.noting import noted
from tests.helpers.waits import waits
from tests.models.exported.programs import exported
from virtual_gpus import virtual_gpus

KNOWN = 259  # ids of the byte tokenizer; the models' logits are wider
SAMPLE = ["llama", "gemma3", "bloom", "gpt_neo", "deepseek_v3", "mixtral", *["qwen3_next", "jamba", "lfm2"]]
FURTHER = ["mistral", "llama4_text", "falcon_alibi", "gemma3n_text", "gpt_oss"]


def new_model(shape: str = "llama", device: str = "cpu", **changes: Any) -> Any:
    return gen.from_transformers(tiny_model(shape, **changes).to(device), byte_tokenizer(chat=True))


def by_hand(model: Any, context: Sequence[int], continuation: Sequence[int]) -> list[float]:
    """Each token's log-probability after one forward of the whole text, in float64 from the logits on."""
    token_ids = [*context, *continuation]
    with torch.inference_mode():
        logits = model.hf_model(torch.tensor([token_ids])).logits[0, :, :KNOWN].double()
    places = range(len(context), len(token_ids))
    return [float(logits[place - 1].log_softmax(-1)[token_ids[place]]) for place in places]


def new_pairs(seed: int, groups: int = 9) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Contexts, most of which share a long beginning, with up to four continuations each."""
    random = Random(seed)

    def some(least: int, most: int) -> list[int]:
        return [random.randrange(256) for _ in range(random.randint(least, most))]

    head = some(45, 50)
    contexts = [(head if random.random() < 0.7 else []) + some(1, 25) for _ in range(groups)]
    return contexts, [[some(1, 9) for _ in range(random.randint(1, 4))] for _ in contexts]


def assert_scores_are_by_hand(
    model: Any, contexts: list[list[int]], several: list[list[list[int]]], off: float
) -> None:
    found = gen.score(model, contexts, several)
    for context, continuations, scores in zip(contexts, several, found, strict=True):
        for continuation, score in zip(continuations, scores, strict=True):
            assert score.token_ids == continuation
            assert score.logprobs == pytest.approx(by_hand(model, context, continuation), abs=off)


@pytest.mark.parametrize("shape", [*SAMPLE, *FURTHER])
def test_each_token_has_the_log_probability_that_the_model_gives_it_alone(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*SAMPLE, *FURTHER} <= {*SHAPES, *HYBRIDS, *OTHERS}
    monkeypatch.setattr(gen.scoring.scorer, "_LOGITS", 300 * 20)  # several parts
    assert_scores_are_by_hand(new_model(shape), *new_pairs(1), off=1e-4)


# bloom's softmax is in float32, whose sums depend on the number of columns and on the CPU
@pytest.mark.parametrize(("shape", "off"), [("llama", 1e-9), ("gemma3", 1e-9), ("bloom", 1e-6)])
def test_a_model_in_float64_is_scored_in_float64(shape: str, off: float) -> None:
    model = gen.from_transformers(tiny_model(shape).double(), byte_tokenizer())
    assert_scores_are_by_hand(model, *new_pairs(2), off=off)


def test_what_contexts_share_is_read_once_and_a_context_once_for_all_its_continuations() -> None:
    model, read = new_model(), 0
    forward = model.forward_all

    def counting(token_ids: Tensor, *rest: Any, **options: Any) -> Tensor:
        nonlocal read
        read += token_ids.numel()
        result: Tensor = forward(token_ids, *rest, **options)
        return result

    model.forward_all = counting
    head = list(range(64))
    contexts = [[*head, number] for number in range(10)]
    gen.score(model, contexts, [[[1, 2], [3, 4, 5], [6]]] * 10)
    # the shared head, the rest of the contexts, and two continuations for each, padded, without their last tokens
    assert read == 64 + 10 + 10 * 2 * 2


def test_the_forms_of_arguments_give_the_forms_of_results() -> None:
    model = new_model()
    one = gen.score(model, "ab", "cd")
    assert isinstance(one, gen.Score)
    assert one == gen.score(model, "ab", [99, 100]) == gen.score(model, ["ab"], ["cd"])[0]
    assert [one] == gen.score(model, "ab", ["cd"]) == gen.score(model, ["ab"], [["cd"]])[0]
    ids = model.tokenizer.encode("ab")
    assert gen.score(model, ids, [[99, 100]])[0].logprobs == pytest.approx(one.logprobs, abs=1e-5)
    own = gen.score(model, "abcd")
    assert own.token_ids == [98, 99, 100]
    assert own.logprobs[1:] == pytest.approx(one.logprobs, abs=1e-5)
    assert gen.score(model, ["abcd", "xy"])[0].logprobs == pytest.approx(own.logprobs, abs=1e-5)
    assert own.sum == pytest.approx(sum(own.logprobs))
    assert own.perplexity == pytest.approx(math.exp(-sum(own.logprobs) / 3))


def test_the_likeliest_tokens_are_told_for_each_place() -> None:
    model = new_model()
    found = gen.score(model, "some text to score", top_logprobs=3)
    assert found.top_logprobs is not None
    ids = model.tokenizer.encode("some text to score")
    with torch.inference_mode():
        rows = model.hf_model(torch.tensor([ids])).logits[0, :-1, :KNOWN].double().log_softmax(-1)
    for row, own, top, hit in zip(rows, found.logprobs, found.top_logprobs, found.is_argmax, strict=True):
        assert top.logprob == own
        assert top.token_ids == row.topk(3).indices.tolist()
        assert top.logprobs == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert hit == (own >= top.logprobs[0] - 1e-6)


def test_a_model_that_is_exported_or_scripted_reads_token_by_token() -> None:
    contexts, several = new_pairs(3, 3)
    by_program = gen.from_exported(exported(), byte_tokenizer())
    reference = new_model("one layer")
    for context, continuations in zip(contexts, several, strict=True):
        context = context[:20]
        found = gen.score(by_program, context, [[*one] for one in continuations])
        for score, continuation in zip(found, continuations, strict=True):
            assert score.logprobs == pytest.approx(by_hand(reference, context, continuation), abs=1e-4)
    said = gen.score(ScriptedModel("bc"), "a", "bx")
    assert said.logprobs == [0.0, -math.inf]
    assert said.perplexity == math.inf


def test_on_gpus_the_host_waits_at_the_end_alone() -> None:
    contexts, several = new_pairs(4)
    expected = gen.score(new_model(), contexts, several)
    with virtual_gpus(2):
        model = new_model(device="cuda:1")
        counts, _ = waits(lambda last: gen.score(model, contexts[-last:], several[-last:], top_logprobs=2), 1, 6)
        assert counts[0] == counts[1] <= 3  # values, likeliest tokens and their log-probabilities
        found = gen.score(model, contexts, several)
        spread: Any = dispatch_model(
            tiny_model("llama"),
            device_map={"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1}
            | {"model.norm": 1, "lm_head": 1},
        )
        sharded = gen.score(gen.from_transformers(spread, byte_tokenizer()), contexts, several)
    for wanted, *others in zip(expected, found, sharded, strict=True):
        for other in others:
            for one, two in zip(wanted, other, strict=True):
                assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)


def test_memory_that_is_out_halves_what_is_read_together() -> None:
    model, counts = new_model(), []
    make = model.new_rows

    def new_rows(count: int, length: int) -> Any:
        counts.append(count)
        if count > 3:
            raise torch.OutOfMemoryError("no room")
        return make(count, length)

    contexts = [[number, 1, 2] for number in range(10)]
    expected = gen.score(model, contexts, [[3, 4]] * 10)
    model.new_rows = new_rows
    assert gen.score(model, contexts, [[3, 4]] * 10) == pytest.approx(expected)
    assert max(counts) == 10
    model.new_rows = lambda count, length: new_rows(count + (length > 1) * 9, length)
    with pytest.raises(gen.ModelError, match="continuation 0 of prompt 0 does not fit into the memory of cpu"):
        gen.score(model, [1], [2, 3])


def test_few_logits_are_in_memory_at_once() -> None:
    model: Any = new_model(vocab_size=4000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gen.scoring.scorer, "_LOGITS", 4000 * 16)
        sizes = noted(patch, Scorer, "_look", lambda scorer, logits, wanted: logits.numel())
        found = gen.score(model, ["x" * 100, "y" * 90])
    assert max(sizes) <= 4000 * 16
    assert found[1].logprobs == pytest.approx(gen.score(model, "y" * 90).logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a", ""), "continuation 0 of prompt 0, '', has no tokens"),
        (("a", [[1], []]), r"continuation 1 of prompt 0, \[\], has no tokens"),
        (("a", []), "prompt 0 has an empty list of continuations"),
        (("a", 3), "must be a text or a list of token ids, got 3"),
        (("a", [[1], [999]]), "the token id 999"),
        ((["a", "b"], "c"), "one entry for each of 2 prompts"),
        ((["a", "b"], ["c"]), "one entry for each of 2 prompts.*got 1"),
        (([5],), "prompt 0 has one token"),
        (("a", "b" * 200), "continuation 0 of prompt 0 has 201 tokens .* context is 128"),
        (("x" * 200,), "prompt 0 has 200 tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_runs(arguments: Any, problem: str) -> None:
    model = new_model()
    model.forward_all = None  # nothing may run
    with pytest.raises(gen.ArgumentError, match=problem):
        gen.score(model, *arguments)


class Answer(Enum):
    YES = "yes"
    SEVEN = 7


@pytest.mark.parametrize(
    ("options", "values", "texts"),
    [
        (Literal["ja", 3, None], ["ja", 3, None], ["ja", "3", "null"]),
        (TypeAliasType("Known", Literal["ja", 3, None]), ["ja", 3, None], ["ja", "3", "null"]),
        (Answer, [Answer.YES, Answer.SEVEN], ["yes", "7"]),
        (bool, [True, False], ["true", "false"]),
        ([10, 2.5, "zehn ü"], [10, 2.5, "zehn ü"], ["10", "2.5", "zehn ü"]),
    ],
)
def test_values_are_options_by_their_texts(options: Any, values: list[Any], texts: list[str]) -> None:
    model = new_model()
    wanted = gen.classify(model, ["ab", "c"], texts)
    found = gen.classify(model, ["ab", "c"], options)
    assert [[*one] for one in found] == [values, values]
    assert [[*one.values()] for one in found] == [[*one.values()] for one in wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [([1, True], "are equal in Python"), ([["a"], "b"], "an option must be"), (int, "options must be a list")],
)
def test_what_has_no_text_or_key_of_its_own_is_no_option(options: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.classify(new_model(), "x", options)


def test_a_prompt_that_cannot_be_read_has_its_error_and_the_others_go_on() -> None:
    model = new_model()
    prompts = ["ab", "x" * (model.context_length + 1), "c"]
    found = gen.classify(model, prompts, ["d", "e"], errors="return")
    assert isinstance(found[1], gen.ArgumentError)
    assert [found[0], found[2]] == gen.classify(model, ["ab", "c"], ["d", "e"])
    assert all(isinstance(one, gen.GenError) for one in gen.classify(model, prompts[1:2], ["d"], errors="return"))
    chats: Any = ["ab", [97, 98]]
    assert "prompt 1 is token ids" in str(gen.classify(model, chats, ["d"], chat=True, errors="return")[1])
    with pytest.raises(gen.ArgumentError, match="tokens"):
        gen.classify(model, prompts, ["d", "e"])
    with pytest.raises(gen.ArgumentError, match='errors must be "raise", or "return" for a list'):
        gen.classify(model, "ab", ["d"], errors="return")


@pytest.mark.parametrize("normalise", ["none", "tokens"])
def test_options_that_the_model_rules_out_have_no_probability_and_where_all_are_there_is_an_error(
    normalise: Literal["none", "tokens"],
) -> None:
    model = ScriptedModel(lambda prompt: b"yes" if prompt.endswith("?") else b"what")
    assert gen.classify(model, "a?", ["no", "yes", "y"], normalise=normalise) == {"no": 0, "yes": 0.5, "y": 0.5}
    with pytest.raises(gen.SamplingError, match="prompt 1: to the model, each of the options has probability 0"):
        gen.classify(model, ["a?", "b"], ["no", "yes"], normalise=normalise)
    found = gen.classify(model, ["b", "a?"], ["no", "yes"], normalise=normalise, errors="return")
    assert isinstance(found[0], gen.SamplingError)
    assert found[1] == {"no": 0, "yes": 1}


def test_classify_and_the_other_arguments_are_checked() -> None:
    model: Any = new_model()
    for options in ([], "ab", ["a", ""], ["a", "a"], [b"a"]):
        with pytest.raises(gen.ArgumentError):
            gen.classify(model, "x", options)
    with pytest.raises(gen.ArgumentError, match="normalise must be"):
        gen.classify(model, "x", ["a"], normalise="length")  # type: ignore[call-overload]
    with pytest.raises(gen.ArgumentError, match="max_batch_tokens=3 is too little for continuation 0 of prompt 0"):
        gen.score(model, "abc", "def", max_batch_tokens=3)
    with pytest.raises(gen.ArgumentError, match="top_logprobs must be"):
        gen.score(model, "abc", top_logprobs=0)
    with torch.no_grad():
        model.hf_model.lm_head.weight[3] = math.nan
    with pytest.raises(gen.ModelError, match="prompt 0: the model gives NaN"):
        gen.score(model, "abc")
