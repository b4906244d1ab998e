"""A release: what its check finds, the links that an index shows, and the same version everywhere."""

import io
import os
import re
import runpy
import shlex
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gen
import virtual_gpus

ROOT = Path(__file__).parents[2]
CHECK: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "release.py"))
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
GEN, VIRTUAL_GPUS = CHECK["GEN"], CHECK["VIRTUAL_GPUS"]
TRACKED = {"README.md", "training/demo/learn.py", "gen/__init__.py", *GEN.must_have}
METADATA = "Metadata-Version: 2.4\nName: gen-torch\n\nSee [this](https://example.org/docs/gguf.md).\n"


def wheel_of(folder: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(folder / "a.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return folder / "a.whl"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"training/demo/learn.py": ""}, "a.whl holds training/demo/learn.py, which it should not"),
        ({"gen/py.typed": None}, "a.whl lacks gen/py.typed"),
        ({"gen/models/demo/model.safetensors": None}, "a.whl lacks gen/models/demo/model.safetensors"),
        ({"a.dist-info/METADATA": METADATA + "[that](docs/a.md)"}, "a link that no index can follow: docs/a.md"),
    ],
)
def test_the_check_finds_what_is_wrong_with_a_wheel(
    change: dict[str, str | None], problem: str | None, tmp_path: Path
) -> None:
    right = {name: "" for name in TRACKED if name.startswith("gen/")} | {"a.dist-info/METADATA": METADATA}
    files = {name: text for name, text in (right | change).items() if text is not None}
    found = CHECK["wheel_problems"](wheel_of(tmp_path, files), GEN.package(TRACKED), GEN.must_have)
    assert bool(found) == bool(problem)
    assert any(problem in line for line in found) if problem else not found


def test_the_check_finds_what_an_sdist_has_too_much_and_what_it_lacks(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name in TRACKED - {"README.md"} | {"PKG-INFO", "models/big.gguf"}:
            archive.addfile(tarfile.TarInfo(f"gen_torch-0.1.0/{name}"), io.BytesIO())
    assert CHECK["sdist_problems"](tmp_path / "a.tar.gz", TRACKED) == [
        "a.tar.gz lacks README.md",
        "a.tar.gz holds models/big.gguf, which it should not",
    ]


def test_every_link_that_an_index_shows_leads_to_a_file_of_the_release() -> None:
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / fragment["path"]).read_text(encoding="utf-8") for fragment in hook["fragments"])
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    ours = [re.sub(r".*/v\$HFPR_VERSION/", "", link) for link in links if "/v$HFPR_VERSION/" in link]
    assert len(ours) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert [path for path in ours if not (ROOT / path.partition("#")[0]).exists()] == []
    for picture in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text):
        assert picture.startswith("https://raw.githubusercontent.com/")


def test_the_changelog_tells_of_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(gen.__version__)}\]?( |$)", changelog, re.MULTILINE)


def test_the_addresses_of_the_project_lead_to_its_files() -> None:
    for address in PYPROJECT["project"]["urls"].values():
        path = re.sub(r"^https://github.com/[^/]+/[^/]+/?(blob/main/|tree/main/|issues$)?", "", address)
        assert (ROOT / path).exists(), address


def test_each_of_the_two_distributions_has_its_own_files() -> None:
    tracked = {"README.md", "gen/a.py", "virtual_gpus/README.md", "virtual_gpus/src/virtual_gpus/b.py"}
    assert GEN.files(tracked) == {"README.md", "gen/a.py"} and GEN.package(tracked) == {"gen/a.py"}
    assert VIRTUAL_GPUS.files(tracked) == {"README.md", "src/virtual_gpus/b.py"}
    assert VIRTUAL_GPUS.package(tracked) == {"virtual_gpus/b.py"}


def test_both_have_one_version_one_python_one_torch_and_one_license() -> None:
    folder = ROOT / "virtual_gpus"
    other = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    project = PYPROJECT["project"]
    assert virtual_gpus.__version__ == gen.__version__
    assert project["optional-dependencies"]["doctor"] == [f"{other['name']}=={gen.__version__}"]
    assert other["requires-python"] == project["requires-python"]
    assert [*other["dependencies"]] == [line for line in project["dependencies"] if line.startswith("torch>")]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_steps_of_the_action_are_filled_with_a_workflows_inputs() -> None:
    install, run = CHECK["action_steps"]({"package": "a.whl", "arguments": "-q 'a b'"})
    assert "pip install pytest" in install[0]
    assert install[1] == {"PACKAGE": "a.whl", "TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}
    assert run == ("""python -m pytest --virtual-gpus "$GPUS" -q 'a b'""", {"GPUS": "2"})


def test_a_project_that_has_never_heard_of_gen_finds_its_mistake_with_two_lines(tmp_path: Path) -> None:
    files = [path for path in CHECK["STRANGER"].rglob("*") if path.is_file() and "cache" not in str(path)]
    assert len(files) == 5
    without_installs = [command for command in CHECK["strangers_steps"]("") if not command.startswith("pip")]
    assert without_installs == ["python -m pytest", "python -m pytest --virtual-gpus 2"]
    python = [command.replace("python", shlex.quote(sys.executable), 1) for command in without_installs]
    plain = {**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    assert CHECK["find_the_strangers_mistake"](python, tmp_path, plain) == []
