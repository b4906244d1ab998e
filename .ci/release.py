"""Builds what an index would get into dist/, gen and virtual-gpus, and checks that a new environment can use both.

An sdist holds what git tracks, and nothing else; gen's leaves virtual_gpus/ out. A wheel holds the package alone; the
checkout and the sdist give the same one. `twine check --strict` reads all. A new environment outside of the checkout
installs the wheels that the sdists give, with the versions that constraints.txt pins. First virtual-gpus comes, with
torch and pytest alone, by two lines in the workflow of the five files in stranger/, which find the mistake there, and
by the steps of its action: a mistake of five lines raises its error there, in a test and in a program. Then gen comes:
every public name is imported, `gen generate` writes a text, and `gen doctor` runs the demo model on virtual GPUs.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from shutil import copytree, rmtree
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
STRANGER = ROOT / ".ci" / "stranger"
EXPRESSION = re.compile(r"\$\{\{ ([\w.-]+) \}\}")  # of a workflow
LINK = re.compile(r"\]\((?!https://)([^)\s]+)\)")
PROGRAM = """
import sys
import gen
assert gen.__file__.startswith(sys.prefix), gen.__file__
for name in gen.__all__:
    getattr(gen, name)
model = gen.load("demo", device="cpu")
year = gen.generate(model, "Name a year.", gen.regex("[0-9]{4}"), seed=1)
assert len(year) == 4, year
print("gen", gen.__version__)
"""
MISTAKE = """
import sys
import virtual_gpus
assert virtual_gpus.__file__.startswith(sys.prefix), virtual_gpus.__file__
assert "torch" not in sys.modules
import torch
with virtual_gpus.virtual_gpus(2):
    try:
        torch.zeros(4, device="cuda:1") + torch.ones(4)
    except virtual_gpus.DeviceMismatchError as error:
        print(error)
    else:
        sys.exit("no error")
"""
TEST = """
import pytest
import torch

def test_it_finds_the_mistake(gen_virtual_gpus):
    assert torch.cuda.device_count() == gen_virtual_gpus == 3
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.zeros(4, device="cuda:1") + torch.ones(4)
"""


@dataclass(frozen=True)
class Distribution:
    """One of the two distributions of this repository.

    Attributes:
        folder: where its pyproject.toml is, "" or "folder/".
        source: where its package is, in the repository.
        must_have: what its wheel must have.
    """

    folder: str
    source: str
    must_have: tuple[str, ...]

    def files(self, tracked: set[str]) -> set[str]:
        """What its sdist holds, by the path in it, of the files that git tracks."""
        names = {name for name in tracked if name.startswith(self.folder)}
        left_out = () if self.folder else tuple(other.folder for other in DISTRIBUTIONS if other.folder)
        return {name.removeprefix(self.folder) for name in names if not name.startswith(left_out)}

    def package(self, tracked: set[str]) -> set[str]:
        """What its wheel holds, by the path in it, of the files that git tracks."""
        parent = str(PurePosixPath(self.source).parent) + "/"
        return {name.removeprefix(parent) for name in tracked if name.startswith(self.source)}


GEN = Distribution("", "gen/", ("gen/py.typed", "gen/models/demo/model.safetensors", "gen/models/demo/NOTICE"))
VIRTUAL_GPUS = Distribution(
    "virtual_gpus/", "virtual_gpus/src/virtual_gpus/", ("virtual_gpus/py.typed", "virtual_gpus/plugin.py")
)
DISTRIBUTIONS = (VIRTUAL_GPUS, GEN)


def build(kind: str, source: Path, folder: Path) -> Path:
    """The one file that uv builds: "wheel" or "sdist", from a checkout or an sdist."""
    pins = ["--build-constraints", str(ROOT / "constraints.txt")]
    command = [
        sys.executable,
        "-m",
        "uv",
        "build",
        f"--{kind}",
        str(source),
        "--out-dir",
        str(folder),
        *pins,
        "--quiet",
    ]
    before = {*folder.glob("*")}
    subprocess.run(command, check=True, env=os.environ | {"UV_NO_CONFIG": "1"})
    [built] = {*folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")} - before
    return built


def tracked(root: Path) -> set[str]:
    """The files that git tracks, as paths with slashes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (root / name).exists()}


def sdist_problems(sdist: Path, files: set[str]) -> list[str]:
    """What the sdist lacks of these files, and what it has besides."""
    with tarfile.open(sdist) as archive:
        found = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in archive if member.isfile()}
    # the build puts the .gitignore that it has followed beside a pyproject.toml that is in a folder
    return _differences(sdist.name, found - {"PKG-INFO", ".gitignore"}, files - {".gitignore"})


def wheel_problems(wheel: Path, package: set[str], must_have: tuple[str, ...]) -> list[str]:
    """What the wheel lacks of a package's files, what it has besides, and links that lead nowhere."""
    contents = read_wheel(wheel)
    problems = _differences(wheel.name, {name for name in contents if ".dist-info/" not in name}, package)
    problems += [f"{wheel.name} lacks {name}" for name in must_have if name not in contents]
    [metadata] = [contents[name] for name in contents if name.endswith(".dist-info/METADATA")]
    description = message_from_bytes(metadata).get_payload()
    assert isinstance(description, str)
    return problems + [
        f"the description has a link that no index can follow: {link}" for link in LINK.findall(description)
    ]


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel, by its path."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _differences(what: str, found: Iterable[str], wanted: Iterable[str]) -> list[str]:
    lacking, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return [f"{what} lacks {name}" for name in lacking] + [f"{what} holds {name}, which it should not" for name in more]


def action_steps(inputs: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """What virtual_gpus/action.yml runs in bash, step by step, each with its environment.

    Args:
        inputs: the inputs that a workflow gives; the others have their defaults.
    """
    action: Any = yaml.safe_load((ROOT / VIRTUAL_GPUS.folder / "action.yml").read_text(encoding="utf-8"))
    values = {f"inputs.{name}": inputs.get(name, given["default"]) for name, given in action["inputs"].items()}

    def filled(text: str) -> str:
        return EXPRESSION.sub(lambda found: values[found[1]], text)

    steps = action["runs"]["steps"]
    assert all(step["shell"] == "bash" for step in steps)
    return [(filled(step["run"]), {key: filled(text) for key, text in step["env"].items()}) for step in steps]


def strangers_steps(package: str) -> list[str]:
    """The shell commands of the workflow of stranger/: the last two of them bring virtual GPUs, from `package`."""
    workflow: Any = yaml.safe_load((STRANGER / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["tests"]["steps"] if "run" in step]
    assert "virtual-gpus" in commands[-2]
    return [*commands[:-2], commands[-2].replace("virtual-gpus", package), commands[-1]]


def find_the_strangers_mistake(commands: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """Run the commands, in a copy of stranger/: all succeed but the last, which finds the mistake. Returns what is
    wrong."""
    copytree(STRANGER, folder / "stranger")
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=folder / "stranger", env=environment, capture_output=True, text=True
        )
        if command is not commands[-1] and done.returncode:
            return [f"{command}: {done.stdout}{done.stderr}"]
    lines = (STRANGER / "smoothing.py").read_text(encoding="utf-8").splitlines()
    [line] = [number for number, text in enumerate(lines, start=1) if "conv1d" in text]
    said = ("DeviceMismatchError", "found at least two devices, cuda:1 and cpu", f"smoothing.py:{line} in forward")
    lacking = [part for part in (*said, "2 failed, 1 passed") if part not in done.stdout]
    return [f"{commands[-1]} does not say {part!r}: {done.stdout}" for part in lacking]


def install_and_run(virtual_gpus: Path, gen: Path, folder: Path, torch_index: str | None) -> None:
    """Install the wheels into a new environment in the folder, one after the other, and use them from there.

    Raises:
        CalledProcessError: a command failed; it has said why.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = folder / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    (folder / "test_mistake.py").write_text(TEST)
    commands = [
        [sys.executable, "-m", "venv", str(folder / "environment")],
        [*pip, *(["--index-url", torch_index, "--no-deps"] if torch_index else []), "torch"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, env=environment, check=True)
    constraints = (ROOT / "constraints.txt").as_uri()  # pip takes a path with a space for two
    path = {"PATH": f"{python.parent}:{environment['PATH']}", "PIP_CONSTRAINT": constraints}
    problems = find_the_strangers_mistake(strangers_steps(str(virtual_gpus)), folder, environment | path)
    if problems:
        raise SystemExit("\n".join(problems))
    inputs = {"package": str(virtual_gpus), "gpus": "3", "arguments": "-q test_mistake.py"}
    for script, given in action_steps(inputs):
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=environment | path | given, check=True
        )
    commands = [
        [str(python), "-c", MISTAKE],
        [*pip, f"{gen}[doctor]", str(virtual_gpus)],
        [str(python), "-c", PROGRAM],
        [str(python.with_name("gen")), "--version"],
        [str(python.with_name("gen")), "generate", "Once upon a time", "--seed", "7", "--max-new-tokens", "24"],
        [str(python.with_name("gen")), "doctor", "--devices", "2"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", help="an index that torch is installed from first, as its own one for the CPU")
    torch_index = parser.parse_args().torch_index
    dist, files = ROOT / "dist", tracked(ROOT)
    rmtree(dist, ignore_errors=True)
    built, wheels, problems = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        for one in DISTRIBUTIONS:
            sdist, wheel = build("sdist", ROOT / one.folder, dist), build("wheel", ROOT / one.folder, dist)
            again = build("wheel", sdist, Path(temporary))
            problems += sdist_problems(sdist, one.files(files))
            problems += wheel_problems(wheel, one.package(files), one.must_have)
            if read_wheel(again) != read_wheel(wheel):
                problems.append(f"{wheel.name} that is built from the sdist differs from the checkout's")
            built += [sdist, wheel]
            wheels.append(again)
        print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=True)
        install_and_run(wheels[0], wheels[1], Path(temporary), torch_index)
    for file in built:
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 2**20:.1f} MiB")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
