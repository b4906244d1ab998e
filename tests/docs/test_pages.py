"""The pages of docs/ are true: their programs print what they show, and their commands and names exist."""

import ast
import inspect
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.main import get_command

import gen
import gen.integrations.outlines
import gen.integrations.transformers
from gen.cli.commands import app
from gen.server.routes import OTHERS, TEXTS
from tests.docs import pages
from tests.helpers.tiny_encoders import encoder_tokenizer, tiny_encoder
from tests.helpers.tiny_models import stored, tiny_model
from tests.helpers.tokenizers import byte_tokenizer
from tests.models.transformers.vision_helpers import picture, tiny_processor, tiny_vision_model
from tests.offline.helpers import WorkerHere
from virtual_gpus import virtual_gpus

# Pages whose programs no test can run. Tests below check that these programs parse, and that all names in them exist.
NEEDS = {
    "exllama.md": "a CUDA device with exllamav2 and exllamav3",
    "guides/extraction.md": "SmolLM2-135M-Instruct, which `make real` downloads",
    "guides/serve.md": "a server that runs, and OpenAI's client; tests/server has what clients send",
    "guides/streams.md": "SmolLM2-135M-Instruct, which `make real` downloads",
    "guides/thinking.md": "SmolLM2-135M-Instruct, which `make real` downloads",
    "guides/tools.md": "SmolLM2-135M-Instruct, which `make real` downloads",
    "outlines.md": "Outlines 0.0.46; benchmarks/outlines/suite.py installs it and runs the like",
}
PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = [page for page in pages.NAMES if pages.shown(page) and page not in NEEDS]


def text_model(folder: Path) -> dict[str, object]:
    stored(tiny_model(max_position_embeddings=64), folder)
    return {"checkpoint": folder, "folder": folder, "tokenizer": byte_tokenizer()}


def encoder(folder: Path) -> dict[str, object]:
    return {"checkpoint": stored(tiny_encoder(), folder, encoder_tokenizer())}


def vision_model(folder: Path) -> dict[str, object]:
    tiny_vision_model("llava").save_pretrained(folder / "model")
    tiny_processor("llava").save_pretrained(folder / "model")
    picture(1).save(folder / "cat.png")
    return {"path": folder / "model", "picture": picture(2)}


GIVEN: dict[str, Callable[[Path], dict[str, object]]] = {
    "chat.md": vision_model,
    "embedding.md": encoder,
    "exported.md": text_model,
    "five_systems.md": vision_model,
    "virtual_gpus.md": text_model,
}
WITHIN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "batch.md": lambda: patch("gen.offline.executors.processes.WorkerProcess", WorkerHere),
    "guides/devices.md": virtual_gpus,
}


def prepared(page: str, folder: Path, stack: ExitStack) -> dict[str, object]:
    """The names that a page's programs may use."""
    names = GIVEN[page](folder) if page in GIVEN else {}
    if page in WITHIN:
        stack.enter_context(WITHIN[page]())
    return {"__name__": "my_test", **names}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(tmp_path))  # as for a program in that folder
    with ExitStack() as stack:
        names = prepared(page, tmp_path, stack)
        printed = [pages.without_times(text) for text in pages.printed(page, names, tmp_path)]
    assert printed == [pages.without_times(text) for text in pages.shown(page)]


@pytest.mark.parametrize("page", pages.NAMES)
def test_files_and_names_that_a_page_speaks_of_exist(page: str) -> None:
    text = (pages.DOCS / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:gen|tests|benchmarks|examples|training|docs)/[\w./-]*)`", text)
    assert [name for name in named if not (pages.ROOT / name).exists()] == []
    for name in re.findall(r"`(gen(?:\.\w+)+)[`(]", text):
        assert exists(name), name


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or a member of one."""
    found: Any = gen
    for number, part in enumerate(name.split(".")[1:], 2):
        with suppress(ModuleNotFoundError):
            import_module(".".join(name.split(".")[:number]))
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def names_of(program: str) -> list[tuple[str, ast.Call | None]]:
    """The names gen.x.y of a program, each with its call if it is called."""
    tree = ast.parse(program)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [(ast.unparse(node), called.get(id(node))) for node in nodes if ast.unparse(node).startswith("gen.")]


@pytest.mark.parametrize("page", NEEDS)
def test_what_no_test_can_run_has_names_and_arguments_that_exist(page: str) -> None:
    found = [name for block in pages.blocks(page) if block.language == "python" for name in names_of(block.body)]
    assert found
    for name, call in found:
        target: Any = gen
        for part in name.split(".")[1:]:
            target = getattr(target, part)
        if call is not None:
            inspect.signature(target).bind(*call.args, **{word.arg or "": word.value for word in call.keywords})


@pytest.mark.parametrize("page", pages.NAMES)
def test_commands_that_are_only_shown_exist(page: str) -> None:
    targets = set(re.findall(r"^(\w+):", (pages.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in pages.commands(page):
        program, *words = shlex.split(line, comments=True)
        if program == "gen":
            check_options(words)
        elif program == "make":
            assert words[0] in targets, line
        elif program == "python" and words[0] == "-m":
            assert find_spec(words[1]), line
        elif program == "python":
            assert (pages.ROOT / words[0]).is_file(), line
        elif program == "pip":
            assert {*re.findall(r"\[(\w+)\]", line)} <= {*EXTRAS}, line
        elif program == "curl":
            assert words[0].removeprefix("http://127.0.0.1:8000") in {post[0] for post in [*TEXTS, *OTHERS]}, line
        elif program == "serve":  # Ray's; tests/ray gives it the page's file
            assert words[1] in {block.title for block in pages.blocks(page)}, line
        else:
            assert program == "pytest", line


def check_options(words: list[str]) -> None:
    """Raise unless `gen` takes these arguments."""
    command: Any = get_command(app)
    with command.make_context("gen", words, resilient_parsing=True) as context:
        while words:  # words left after the options of `gen` itself, such as --version
            name, command, words = command.resolve_command(context, words)
            context = command.make_context(name, list(words), parent=context, resilient_parsing=True)
            words = words if hasattr(command, "resolve_command") else []


def test_the_export_example_gives_the_models_own_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text_model(tmp_path)
    file = tmp_path / "model.pt2"
    monkeypatch.setattr(sys, "argv", ["export_demo.py", str(tmp_path), str(file)])
    runpy.run_path(str(pages.ROOT / "examples" / "export_demo.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "the same text as the model's own" in printed
    assert f"{file} on {gen.load(tmp_path).placement}" in printed


def test_the_architecture_names_methods_that_are_there() -> None:
    """Each is written as `Class.method`; a class may have a protocol's or its base class's methods alone."""
    text = (pages.DOCS / "inside" / "architecture.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (pages.ROOT / "gen").rglob("*.py")]
    named = {*re.findall(r"`([A-Z]\w+)\.(_?\w+)`", text)}
    assert len(named) > 12
    missing = [
        f"{name}.{method}"
        for name, method in named
        if not any(re.search(rf"^class {name}\b.*?^    (?:async )?def {method}\(", one, re.M | re.S) for one in sources)
    ]
    assert missing == []
