"""What `import gen` imports, and what it does not touch."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gen
from tests.helpers.imports import imports


def test_importing_gen_loads_no_model_library_and_changes_no_state_of_torch() -> None:
    report = imports()["gen"]
    assert report["same"]
    assert "gen" in report["modules"]
    heavy = {"transformers", "accelerate", "triton", "exllamav2", "exllamav3", "tokenizers", "typer", "huggingface_hub"}
    assert not (heavy | {"pydantic", "llguidance"}) & set(report["modules"])


def test_who_asks_for_no_output_type_waits_for_neither_pydantic_nor_llguidance() -> None:
    assert not {"pydantic", "llguidance"} & set(imports()["generate"]["modules"])
    assert not imports()["generate"]["compiling"]


def test_importing_gen_does_not_wait_for_torch() -> None:
    program = "import sys, gen, gen.errors, gen.cli; print('torch' in sys.modules, 'typer' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


def test_names_are_imported_from_where_the_type_checker_finds_them() -> None:
    [block] = [node for node in ast.parse(Path(gen.__file__).read_text()).body if isinstance(node, ast.If)]
    imports = {name.name: node.module for node in block.body for name in node.names}  # type: ignore[attr-defined]
    assert sorted(imports) == sorted(gen.__all__) == dir(gen)
    for name, module in imports.items():
        assert getattr(gen, name) is getattr(import_module(module), name)
    assert gen.devices.resolve_device("cpu").type == "cpu"  # a module of the package
    with pytest.raises(AttributeError, match="module 'gen' has no attribute 'lod'"):
        gen.lod  # noqa: B018


WITHOUT = """
import sys, traceback
from importlib import import_module
sys.modules["virtual_gpus"] = None
import gen
gen.load
for name in ("gen.doctor", "gen.testing"):
    try:
        import_module(name)
    except Exception as error:
        print(*traceback.format_exception_only(error), end="")
"""


def test_what_needs_virtual_gpus_says_how_to_install_it() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    doctor, testing = run.stdout.splitlines()
    assert doctor.startswith("gen.errors.ModelError: gen.doctor needs virtual-gpus: pip install 'gen-torch[doctor]'")
    assert testing.startswith("ImportError: gen.testing is the package virtual_gpus now, which is not installed")
