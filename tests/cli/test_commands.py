"""The commands: what goes to stdout and stderr, prompts that fail while others go on, exit codes."""

import io
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer

import gen
from gen import cli
from gen.models.transformers.model import TransformersModel
from tests.helpers import ScriptedModel
from tests.helpers.demo import short_demo
from tests.models.gguf.files import write_gguf
from tests.models.transformers.vision_helpers import picture, tiny_processor, tiny_vision_model

Capture = pytest.CaptureFixture[str]
real_load = gen.load


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main([*map(str, arguments)])
    return int(exit_.value.code or 0)


@pytest.fixture(autouse=True)
def _load_once(demo: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, device: Any = None, dtype: Any = None, context_length: int | None = None) -> Any:
        if name == "demo" and context_length is None:
            return demo
        return real_load(name, device=device, context_length=context_length)

    monkeypatch.setattr(gen, "load", load)


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_generate_prints_the_text_that_the_library_gives(demo: TransformersModel, capsys: Capture) -> None:
    options = ["--max-new-tokens", "24", "--temperature", "0.8", "--top-k", "40", "--seed", "7"]
    assert run("generate", "Once upon a time", "--model", "demo", "--device", "cpu", *options) == 0
    sampler = gen.samplers.multinomial(temperature=0.8, top_k=40)
    expected = gen.generate(demo, "Once upon a time", sampler=sampler, max_new_tokens=24, seed=7)
    assert capsys.readouterr().out == f"{expected}\n"
    assert run("stream", "Once upon a time", *options) == 0
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ([], None),
        (["--greedy"], gen.samplers.greedy()),
        (["--repetition-penalty", "1.5"], gen.samplers.multinomial(repetition_penalty=1.5)),
        (["--greedy", "--no-repeat-ngram-size", "2"], gen.samplers.greedy(no_repeat_ngram_size=2)),
        (["--greedy", "--bad-word", "e", "--bad-word", "a"], gen.samplers.greedy(bad_words=["e", "a"])),
    ],
)
def test_options_ask_for_a_sampler(options: list[str], sampler: Any, demo: TransformersModel, capsys: Capture) -> None:
    expected = gen.generate(demo, "One day", sampler=sampler, max_new_tokens=16, seed=3)
    for command in ("generate", "stream"):
        assert run(command, "One day", "--seed", "3", "--max-new-tokens", "16", *options) == 0
        assert capsys.readouterr().out == f"{expected}\n"


def test_beams_give_the_likeliest_texts(demo: TransformersModel, capsys: Capture) -> None:
    sampler = gen.samplers.beam_search(3, length_penalty=0.5)
    expected = gen.generate(demo, "One day", sampler=sampler, max_new_tokens=8, num_return_sequences=2)
    options = ["--beams", "3", "--length-penalty", "0.5", "--samples", "2", "--max-new-tokens", "8", "--json"]
    assert run("generate", "One day", *options) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == list(expected)


def test_a_stop_string_with_an_escape_ends_the_text(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = short_demo(6)  # it says what the demo model says
    monkeypatch.setattr(gen, "load", lambda *arguments, **options: whole)
    assert run("generate", "Describe Ada as JSON.\n", "--greedy", "--stop", r"\u0022age") == 0
    out = capsys.readouterr().out
    assert out.startswith('{"name":')
    assert "age" not in out


def test_output_types_give_values_of_them(demo: TransformersModel, tmp_path: Path, capsys: Capture) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}}}
    file = write(tmp_path / "schema.json", [json.dumps(schema | {"required": ["name"]})])
    arguments: dict[str, Any] = {"seed": 3, "max_new_tokens": 60}
    kinds = {
        "--schema": (file, gen.json_schema(schema | {"required": ["name"]})),
        "--regex": (r"\d{4}", gen.regex(r"\d{4}")),
        "--choice": ("yes", gen.choice(["yes"])),
    }
    for flag, (given, output_type) in kinds.items():
        expected = gen.generate(demo, ["One day", "Two"], output_type, details=True, **arguments)
        options = [flag, given, "--seed", "3", "--max-new-tokens", "60"]
        assert run("generate", "One day", "Two", *options, "--json") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(one["value"], one["engine"]) for one in lines] == [(one.value, "device") for one in expected]
        assert run("generate", "One day", "Two", *options) == 0
        assert capsys.readouterr().out == "".join(f"{one.text}\n" for one in expected)
        assert run("stream", "One day", *options) == 0
        assert capsys.readouterr().out == f"{expected[0].text}\n"
    assert run("generate", "x", "--choice", "yes", "--choice", "no", "--greedy") == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")


def test_an_output_type_that_cannot_be_is_a_mistake_of_usage(tmp_path: Path, capsys: Capture) -> None:
    empty = write(tmp_path / "empty.json", ['{"type": "integer", "minimum": 2, "maximum": 1}'])
    for options, message in (
        (["--schema", str(tmp_path / "none.json")], "cannot be read"),
        (["--schema", empty], "no text meets the output type"),
        (["--schema", write(tmp_path / "broken.json", ["{"])], "is no JSON"),
        (["--regex", "("], "'('"),
        (["--regex", "a", "--choice", "b"], "give --regex or --choice"),
        (["--regex", "a{9}", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--max-new-tokens", str(2**63)], "max_new_tokens must be a whole number at least 0"),
    ):
        assert run("generate", "x", *options) == 2
        captured = capsys.readouterr()
        assert message in captured.err and not captured.out


def test_images_go_with_each_prompt(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    monkeypatch.setattr(gen, "load", lambda *arguments, **options: model)
    pictures = [picture(1), picture(2)]
    paths = [str(tmp_path / f"{number}.png") for number in range(2)]
    for image, path in zip(pictures, paths, strict=True):
        image.save(path)
    options = ["--greedy", "--max-new-tokens", "6", "--image", paths[0], "--image", paths[1]]
    settings: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 6}
    for prompts, chat in ((["What is this?", "Why?"], True), (["<image> or <image>?", "<image><image>"], False)):
        expected = gen.generate(model, prompts, images=[pictures] * 2, chat=chat, **settings)
        flags = [*options, "--chat"] if chat else options
        assert run("generate", *prompts, *flags, "--json") == 0
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == expected
        assert run("stream", prompts[0], *flags) == 0
        assert capsys.readouterr().out == f"{expected[0]}\n"
    for arguments in (["generate", "x", "y"], ["generate", "x", "--chat"], ["stream", "x"]):
        assert run(*arguments, "--image", paths[0], "--image", str(tmp_path / "none.png")) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"gen: --image {tmp_path / 'none.png'}: cannot read") and error.count("\n") == 1


def test_json_is_an_object_a_line_for_each_text(capsys: Capture) -> None:
    assert run("generate", "One", "Two", "--samples", "2", "--json", "--seed", "1", "--max-new-tokens", "4") == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["prompt"] for line in lines] == ["One", "One", "Two", "Two"]
    assert {"text", "value", "token_ids", "logprobs", "score", "finish_reason", "seed"} < set(lines[0])
    assert "2/2" in captured.err  # the progress bar


def test_json_has_the_likeliest_tokens_where_they_are_asked_for(demo: TransformersModel, capsys: Capture) -> None:
    options = ["--greedy", "--max-new-tokens", "3", "--seed", "1", "--json"]
    assert run("generate", "One day", *options, "--top-logprobs", "2") == 0
    line = json.loads(capsys.readouterr().out)
    greedy = gen.samplers.greedy()
    made = gen.generate(demo, "One day", sampler=greedy, max_new_tokens=3, seed=1, details=True, top_logprobs=2)
    for place, one in zip(line["top_logprobs"], made.top_logprobs or [], strict=True):
        assert place == {name: pytest.approx(value, abs=1e-4) for name, value in asdict(one).items()}
    assert run("generate", "One day", *options) == 0
    assert "top_logprobs" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("text", ['a "quote"\n\x00 \x85\u2028', "\U0001f600 \ud800"])
def test_json_is_valid_for_every_text_and_number(text: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    completion = gen.Completion(
        text=text,
        value=text,
        token_ids=[1],
        logprobs=[float("nan"), -0.5],
        score=-float("inf"),
        finish_reason="eos",
        seed=1,
    )
    monkeypatch.setattr(gen, "generate_iter", lambda *arguments, **options: [(0, completion)])
    assert run("generate", "One", "--json") == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    line = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (line["text"], line["logprobs"], line["score"]) == (text, [None, -0.5], None)


def test_prompts_come_from_a_file_or_stdin(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--json", "--seed", "1", "--max-new-tokens", "2"]
    file = write(tmp_path / "prompts.txt", ["One day", "", "Two", "Über"])
    assert run("generate", "--file", file, "--batch-size", "2", *options) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["One day", "Two", "Über"]
    assert "left out blank lines: 2" in err
    assert "3/3" in err
    for command, prompts in ((["generate"], ["One\nday"]), (["generate", "--file", "-"], ["One", "day"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One\nday\n")))
        assert run(*command, *options) == 0
        assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == prompts


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_prompt_that_fails_does_not_lose_the_others(
    batch_size: int, tmp_path: Path, capsys: Capture, demo: TransformersModel
) -> None:
    long = "word " * demo.context_length
    lines = ["One", "Two", long, "", "Three", "Four", long, "Five"]
    options = ["--seed", "1", "--max-new-tokens", "4", "--json", "--batch-size", str(batch_size)]
    file = write(tmp_path / "prompts.txt", lines)
    assert run("generate", "--file", file, *options) == 1
    out, err = capsys.readouterr()
    good = ["One", "Two", "Three", "Four", "Five"]
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == good
    assert [json.loads(line)["text"] for line in out.splitlines()] == gen.generate(
        demo, good, sampler=None, max_new_tokens=4, seed=1
    )
    assert f"gen: {file}, line 3: the prompt has " in err
    assert f"gen: {file}, line 7: the prompt has " in err
    assert err.count("Shorten the prompt") == 2
    assert "7/7" in err
    assert run("generate", long, *options) == 1
    assert "gen: prompt 1: the prompt has " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "x", "--no-such-option"], 2, "No such option"),
        (["generate", "x", "--max-new-tokens", "many"], 2, "valid integer"),
        (["generate", "x", "--max-new-tokens", "-1"], 2, "--max-new-tokens"),
        (["generate", "x", "--seed", "-1"], 2, "--seed"),
        (["generate", "x", "--top-p", "3"], 2, "gen: top_p must be a number above 0 and at most 1, got 3.0"),
        (["generate", "x", "--stop", ""], 2, "gen: stop takes strings of at least one character"),
        (["generate", "x", "--stop", r"\d"], 2, r"gen: --stop '\\d' has a backslash before 'd'"),
        (["generate", "x", "--file", "y"], 2, "not both"),
        (["generate", "--file", "no/such/file"], 2, "gen: cannot read the prompts"),
        (["generate", "x", "--top-logprobs", "2"], 2, "--top-logprobs are shown only in JSON; give --json too"),
        (["generate", "x", "--top-logprobs", "2", "--json", "--beams", "3"], 2, "--beams chooses among whole texts"),
        (["generate", "x", "--top-logprobs", "-1", "--json"], 2, "--top-logprobs"),
        (["generate", "x", "--top-logprobs", "99999", "--json"], 2, "top_logprobs must be"),
        (["generate", "x", "--model", "./no/such/model"], 1, "gen: no directory 'no/such/model'"),
        (["stream", "x", "y"], 2, "unexpected extra argument"),
    ],
)
def test_failures_go_to_stderr_with_their_exit_code(
    arguments: list[str], code: int, message: str, capsys: Capture
) -> None:
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.err.count("gen: ") <= 1
    assert captured.out == ""


def test_what_no_prompt_can_run_with_is_said_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen, "load", lambda *arguments, **options: ScriptedModel("abc"))
    assert run("generate", "One", "Two", "--chat") == 2
    out, err = capsys.readouterr()
    assert err.startswith("gen: this tokenizer has no chat template")
    assert (out, err.count("\n")) == ("", 1)


def test_help_shows_options_in_groups(capsys: Capture) -> None:
    assert run("generate", "--help") == 0
    out = capsys.readouterr().out
    groups = ["Arguments", "Prompts", "Model", "Length", "Sampling", "Search", "Penalties", "Output"]
    assert [name for name in re.findall(r"^╭─ (.*?) ─", out, re.MULTILINE) if name in groups] == groups


@pytest.mark.parametrize("command", ["generate", "stream", "score", "convert", "doctor"])
def test_help_has_a_line_for_each_command(command: str, capsys: Capture) -> None:
    assert run("--help") == 0
    [summary] = re.findall(rf"^│ {command} +(\S.*?) +│$", capsys.readouterr().out, re.MULTILINE)
    assert summary.endswith(".") and "..." not in summary


def test_the_page_says_which_options_stream_lacks() -> None:
    from gen.cli.commands import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # the app is a group
    generate, stream = (
        {option for parameter in commands[name].params for option in parameter.opts if option.startswith("--")}
        for name in ("generate", "stream")
    )
    page = (Path(gen.__file__).parents[1] / "docs/command_line.md").read_text(encoding="utf-8")
    [sentence] = re.findall(r"takes all but(.*?)\.\n", page, re.DOTALL)
    assert set(re.findall(r"--[a-z-]+", sentence)) == generate - stream
    assert stream < generate


def test_a_schema_may_begin_with_the_mark_of_windows_and_errors_name_its_file(tmp_path: Path, capsys: Capture) -> None:
    schema = tmp_path / "schema.json"
    schema.write_bytes(b'\xef\xbb\xbf{"const": 7}')
    assert run("generate", "x", "--schema", str(schema)) == 0
    assert capsys.readouterr().out == "7\n"
    schema.write_text("{", encoding="utf-8")
    assert run("generate", "x", "--schema", str(schema)) == 2
    assert "schema.json': " in capsys.readouterr().err


def test_loading_leaves_a_stderr_that_is_no_terminal_tidy(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import logging

    monkeypatch.setattr(gen, "load", real_load)
    logging.enable_progress_bar()
    try:
        assert run("generate", "One", "--max-new-tokens", "1", "--greedy", "--device", "cpu") == 0
    finally:
        logging.enable_progress_bar()
    assert capsys.readouterr().err == ""


def test_convert_writes_a_folder_that_loads(tmp_path: Path, capsys: Capture) -> None:
    write_gguf(tmp_path / "model.gguf")
    folder = tmp_path / "folder"
    assert run("convert", str(tmp_path / "model.gguf"), str(folder), "--dtype", "float16") == 0
    assert str(real_load(folder, device="cpu").placement) == "cpu (float32)"
    assert capsys.readouterr().out == ""
    assert run("convert", str(tmp_path / "model.gguf"), str(folder)) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert run("convert", str(tmp_path / "model.gguf"), str(tmp_path / "other"), "--dtype", "four") == 2
    assert "dtype must be a floating type" in capsys.readouterr().err
    assert run("convert", str(tmp_path / "missing.gguf"), str(tmp_path / "other")) == 1
    assert "gen: cannot read" in capsys.readouterr().err
    assert run("convert", str(tmp_path / "model.gguf")) == 2


@pytest.mark.parametrize("command", ["generate", "stream", "score"])
def test_a_context_length_is_the_limit_of_prompt_and_text(command: str, capsys: Any) -> None:
    long = "once upon a time " * 8
    assert run(command, long, "--context-length", "300") == 0
    assert run(command, long, "--context-length", "20") == (1 if command == "generate" else 2)
    assert "20" in capsys.readouterr().err.rpartition("context of")[2]
    assert run(command, long, "--context-length", "1") == 2
