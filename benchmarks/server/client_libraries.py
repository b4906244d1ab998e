"""Can the client libraries that people use talk to `gen serve`? Each has an environment of its own, since their pins
conflict.

    python -m benchmarks.server.client_libraries --json results.json

Makes missing environments in build/clients with packages from the registry, starts a server with the demo model and a
tiny encoder, and asks it through each library with `benchmarks.server.clients`. Then it runs
openai-python's own tests of the endpoints that the server has, from its source distribution, and LangChain's standard
tests of chat models. For a test that fails, the results have the field that is the cause, or the test's message.
openai's tests of completions use `suffix`, so they ask a tiny model whose vocabulary has the tokens for filling in. Its
texts begin with a special token, as Llama's do, so that each token that a client reads has a likelihood.
"""

import json
import os
import re
import subprocess
import tarfile
import venv
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.serving import serving

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "clients"
OPENAI_TESTS = ["openai[aiohttp]", "pytest", "pytest-asyncio", "pytest-xdist", "dirty-equals", "rich"]
LANGCHAIN = ["langchain-openai", "langchain-anthropic", "langchain-tests", "pytest"]
LIBRARIES = {  # by the name of the function that tries it: the environment and its packages
    "openai": ("openai", [*OPENAI_TESTS, "anthropic"]),
    "anthropic": ("openai", []),
    "langchain": ("langchain", LANGCHAIN),
    "openai_agents": ("openai-agents", ["openai-agents"]),
    "pydantic_ai": ("pydantic-ai", ["pydantic-ai-slim[openai]"]),
    "instructor": ("instructor", ["instructor"]),
    "litellm": ("litellm", ["litellm", "mcp"]),
    "llm": ("llm", ["llm"]),
    "outlines": ("outlines", ["outlines", "openai"]),
    "guidance": ("guidance", ["guidance", "openai"]),
    "schemathesis": ("schemathesis", ["schemathesis", "pydantic"]),
}
# openai's tests of the endpoints that the server has; it has no files, stores, audio or fine-tuning.
OPENAI_FILES = ["chat/test_completions.py", "test_models.py", "test_embeddings.py", "test_responses.py"]
FILLED_IN = ["test_completions.py"]
OPENAI_KINDS = "create or test_models and (retrieve or list)"
NAMES = ["demo", "gpt-3.5-turbo-instruct", "gpt-6-astra", "ft:gpt-4o-mini:acemeco:suffix:abc123"]
STANDARD_TESTS = """
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

class TestServer(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    chat_model_params = {
        "model": "demo", "base_url": "URL/v1", "api_key": "none", "max_retries": 0, "timeout": 120, "max_tokens": 700,
        "stream_usage": True, "model_kwargs": {"parallel_tool_calls": False},
    }
"""


def main() -> None:
    every = [*LIBRARIES, "openai_tests", "langchain_tests"]
    given = read_arguments(
        __doc__,
        model=("demo", "the model for all tests but openai's of completions"),
        only=({"nargs": "*", "choices": every, "default": every}, "which; default: all"),
    )
    encoder = FOLDER / "text-embedding-3-small"
    _save_encoder(encoder)
    results: dict[str, Any] = {}
    names = [option for name in NAMES for option in ("--name", name)]
    with serving(given.model, *names, "--embedder", str(encoder)) as (url, _):
        for library, (name, packages) in LIBRARIES.items():
            if library in given.only:
                results[library] = _ask(library, _environment(name, packages), url)
        if "openai_tests" in given.only:
            results["openai_tests"] = _openai_tests(_environment("openai", []), url, OPENAI_FILES)
        if "langchain_tests" in given.only:
            results["langchain_tests"] = _langchain_tests(_environment("langchain", LANGCHAIN), url)
    if "openai_tests" in given.only:
        filler = FOLDER / "fills-in"
        _save_filler(filler)
        with serving(str(filler), "--name", "gpt-3.5-turbo-instruct") as (url, _):
            found = _openai_tests(_environment("openai", []), url, FILLED_IN)
        results["openai_tests"]["passed"] += found["passed"]
        results["openai_tests"]["failed"] |= found["failed"]
    rows = []
    for what, found in results.items():
        if "tries" in found:
            failed = [name for name, one in found["tries"].items() if not one["ok"]]
            passed, which = len(found["tries"]) - len(failed), ", ".join(failed)
        else:
            failed, passed = [*found["failed"]], found["passed"]
            which = ", ".join(f"{why} ({count})" for why, count in Counter(found["failed"].values()).items())
        rows.append({"what": what, "version": found["version"], "works": passed, "fails": len(failed), "why": which})
    publish(given, clients=rows, results=results)


def _environment(name: str, packages: list[str]) -> Path:
    """The Python of an environment, which is made if it is missing."""
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / name, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _save_encoder(folder: Path) -> None:
    from tests.helpers.tiny_encoders import encoder_tokenizer, tiny_encoder

    tiny_encoder().save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)


def _save_filler(folder: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    from tests.helpers import BOS, EOS, byte_tokenizer, tiny_model

    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    tiny_model(vocab_size=259 + len(marks), eos_token_id=EOS, max_position_embeddings=512).save_pretrained(folder)
    tokenizer = byte_tokenizer(specials=marks)
    begins = TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)])
    tokenizer.backend_tokenizer.post_processor = begins
    tokenizer.save_pretrained(folder)


def _ask(library: str, python: Path, url: str) -> Any:
    command = [str(python), "-m", "benchmarks.server.clients", library, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"version": "?", "tries": {"start": {"ok": False, "got": done.stderr[-300:]}}}


def _openai_tests(python: Path, url: str, names: list[str]) -> dict[str, Any]:
    version = _version(python, "openai")
    folder = FOLDER / f"openai-{version}"
    if not folder.exists():
        source = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "openai", "--dest", str(FOLDER)]
        subprocess.run([str(python), *source, f"openai=={version}"], check=True)
        with tarfile.open(FOLDER / f"openai-{version}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    files = [f"tests/api_resources/{name}" for name in names]
    found = _pytest(python, folder, [*files, "-k", OPENAI_KINDS], {"TEST_API_BASE_URL": f"{url}/v1"})
    return {"version": version, **found}


def _langchain_tests(python: Path, url: str) -> dict[str, Any]:
    folder = FOLDER / "langchain-standard"
    folder.mkdir(exist_ok=True)
    (folder / "test_server.py").write_text(STANDARD_TESTS.replace("URL", url), encoding="utf-8")
    settings = ["mode = auto", "default_test_loop_scope = session", "default_fixture_loop_scope = session"]
    ini = "\n".join(["[pytest]", *(f"asyncio_{one}" for one in settings)])  # and no settings of this project
    (folder / "pytest.ini").write_text(ini, encoding="utf-8")
    return {"version": _version(python, "langchain-tests"), **_pytest(python, folder, ["test_server.py"], {})}


def _pytest(python: Path, folder: Path, arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [str(python), "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-rfE", *arguments]
    known = os.environ | environment | {"COLUMNS": "2000"}  # summaries of failures are cut at the terminal's width
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, check=False, timeout=1200)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", done.stdout, re.MULTILINE)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    passed = re.search(r"(\d+) passed", last)
    why = {test.removeprefix("tests/api_resources/"): _reason(said) for test, said in sorted(failed)}
    return {"passed": int(passed[1]) if passed else 0, "failed": why}


def _reason(said: str) -> str:
    """The field that the server has refused, or the test's message."""
    field = re.search(r"400 - (\w+) is not supported", said)
    return field[1] if field else said[:100]


def _version(python: Path, package: str) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
