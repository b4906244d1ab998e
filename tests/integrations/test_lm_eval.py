"""gen inside of lm-evaluation-harness: the harness's own model for transformers is the oracle, on the same weights."""

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import gen
from gen.integrations.lm_eval import GenLM, main
from tests.helpers import ScriptedModel, byte_tokenizer, stored, tiny_model

DEMO = Path(gen.__file__).parent / "models" / "demo"
HEAD = "Once upon a time there was a clever girl named Ada. " * 3
CHOICES = [[" sat down", " ran", " was in the house"], [" king", " fox and a dog"], [" of", " the", " and then he"]]


@pytest.fixture(scope="module")
def model() -> Any:
    return GenLM("demo", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def peer() -> Any:
    return HFLM(pretrained=str(DEMO), device="cpu", dtype="float32", batch_size=4)


def tasks(folder: Path) -> TaskManager:
    """A task of each kind, with few documents in JSON lines."""
    documents = [
        {"text": f"{HEAD}One day number {number}, the girl", "choices": CHOICES[number % 3], "answer": number % 2}
        for number in range(6)
    ]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    shared: dict[str, Any] = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "doc_to_text": "{{text}}",
    }
    kinds: dict[str, dict[str, Any]] = {
        "choices": {
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
        "until": {
            "output_type": "generate_until",
            "doc_to_target": "{{text}}",
            "generation_kwargs": {"until": ["."], "max_completion_tokens": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, kind in kinds.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": f"gen_{name}", **shared, **kind}))  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def test_the_harness_finds_what_it_finds_with_its_own_model(
    tmp_path: Path, model: Any, peer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    manager = tasks(tmp_path)
    names = ["gen_choices", "gen_rolling", "gen_until"]
    ours, theirs = (
        simple_evaluate(model=one, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True)
        for one in (model, peer)
    )
    for name in names:
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            if name == "gen_until":
                assert mine["resps"] == other["resps"]
                continue
            for [one], [two] in zip(mine["resps"], other["resps"], strict=True):
                if name == "gen_choices":
                    assert one[1] == two[1]
                    one, two = one[0], two[0]
                assert one == pytest.approx(two, abs=2e-4)
    assert ours["results"]["gen_choices"]["acc,none"] == theirs["results"]["gen_choices"]["acc,none"]


def test_a_continuation_begins_where_the_harness_cuts_it(model: Any, peer: Any) -> None:
    """Also where gen.score cuts elsewhere: where both are in one token, and after a line break."""
    pairs = [
        ("One day a clever girl nam", "ed Ada"),
        ("Is it day?\n", "Yes"),
        ("the ", "cat"),
    ]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for (ours, hit), (theirs, other_hit) in zip(
        model.loglikelihood(requests), peer.loglikelihood(requests), strict=True
    ):
        assert (ours, hit) == (pytest.approx(theirs, abs=2e-4), other_hit)
    with pytest.raises(gen.ArgumentError, match="request 0 has no tokens of its own where the harness cuts it"):
        model.loglikelihood([Instance("loglikelihood", {}, ("Once upon a ti", "me"), 0)])  # the harness's model asserts


def test_log_likelihoods_are_those_of_float64(model: Any) -> None:
    exact = GenLM("demo", device="cpu", dtype="float64")
    pairs = [(HEAD + str(number), choice) for number in range(3) for choice in (" a fox", " the house was red.", "x")]
    pairs += [("", "Once upon a time"), ("ends in spaces  ", "word")]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for (found, _), (wanted, _) in zip(model.loglikelihood(requests), exact.loglikelihood(requests), strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def test_texts_longer_than_the_context_are_read_in_windows(tmp_path: Path) -> None:
    stored(tiny_model(vocab_size=259), tmp_path)
    short, peer = GenLM(str(tmp_path), device="cpu", max_length=32), HFLM(str(tmp_path), device="cpu", max_length=32)
    rolling = [Instance("loglikelihood_rolling", {}, ("to be or not to be, " * 6,), 0)]
    assert short.loglikelihood_rolling(rolling) == pytest.approx(peer.loglikelihood_rolling(rolling), abs=1e-3)
    long = [Instance("loglikelihood", {}, ("a" * 100, "bcd"), 0)]
    [(found, _)], [(wanted, _)] = short.loglikelihood(long), peer.loglikelihood(long)
    assert found == pytest.approx(wanted, abs=1e-4)
    until = [Instance("generate_until", {}, ("a" * 100, {"until": ["\n\n"], "max_gen_toks": 4, "do_sample": False}), 0)]
    assert short.generate_until(until, disable_tqdm=True) == peer.generate_until(until, disable_tqdm=True)
    blank = [Instance("loglikelihood", {}, pair, 0) for pair in (("  ", "ab"), ("", "  ab"))]
    [(wanted, _)] = peer.loglikelihood(blank[1:])  # it has an assert against the first one
    assert [found for found, _ in short.loglikelihood(blank)] == pytest.approx([wanted] * 2, abs=1e-4)


def test_what_a_task_asks_for_and_gen_does_not_know_is_refused(model: Any) -> None:
    for arguments, problem in (
        ({"num_beams": 3}, "num_beams"),
        ({"until": ["."], "max_gen_toks": 10**6}, "asks for 1000000 new tokens"),
    ):
        with pytest.raises(gen.ArgumentError, match=problem):
            model.generate_until([Instance("generate_until", {}, ("a", arguments), 0)], disable_tqdm=True)


def test_a_model_that_is_loaded_takes_no_options_of_loading(model: Any) -> None:
    with pytest.raises(gen.ArgumentError, match="dtype, device_map: pretrained is a model that is loaded already"):
        GenLM(model.model, dtype="float16", device_map="auto")


def test_an_end_that_is_no_token_stands_before_no_text() -> None:
    scripted = ScriptedModel("abc")
    ends = scripted.eos_token_ids
    scripted.eos_token_ids = (999, *ends)
    assert (GenLM(scripted).eot_token_id,) == ends


def test_numbers_that_the_model_cannot_follow_are_refused() -> None:
    model = gen.from_transformers(tiny_model(max_position_embeddings=32), byte_tokenizer())
    assert GenLM(model, max_length=32).max_length == 32
    wrong: dict[str, Any] = {"max_length": 33, "max_gen_toks": "8", "max_batch_tokens": 0}
    for name, value in wrong.items():
        with pytest.raises(gen.ArgumentError, match=f"^{name} must be"):
            GenLM(model, **{name: value})


def test_drawn_texts_are_the_same_at_each_run(model: Any) -> None:
    arguments = {"until": [], "max_gen_toks": 6, "do_sample": True, "temperature": 0.9, "top_k": 20}
    requests = [Instance("generate_until", {}, (text, arguments), 0) for text in ("One day", "Once")]
    assert model.generate_until(requests, disable_tqdm=True) == model.generate_until(requests, disable_tqdm=True)


def test_a_conversation_is_written_as_its_template_has_it() -> None:
    chat = GenLM(gen.from_transformers(tiny_model(), byte_tokenizer(chat=True)))
    history = [{"role": "user", "content": "Hi"}]
    assert chat.apply_chat_template(history) == "[user] Hi\n[assistant] "
    assert "for m in messages" in str(chat.chat_template(True))
    assert chat.chat_template(False) is None
    assert isinstance(chat.tokenizer_name, str)


def test_the_command_line_knows_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks(tmp_path)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    command = ["lm_eval", "run", "--model", "gen", "--model_args", "pretrained=demo", "--device", "cpu", "--limit", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "--include_path", str(tmp_path), "--tasks", "gen_choices"])
    main()
    assert "gen_choices" in capsys.readouterr().out
