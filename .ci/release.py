"""Builds what an index would get into dist/, and checks that a new environment can install and use it.

The sdist holds what git tracks, and nothing else. The wheel holds the package alone; the checkout and the sdist give
the same one. `twine check --strict` reads both. A new environment outside of the checkout installs the wheel that the
sdist gives, with the versions that constraints.txt pins. There every public name is imported, and `gen generate`
writes a text.
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
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from shutil import rmtree

ROOT = Path(__file__).resolve().parents[1]
MUST_HAVE = ("gen/py.typed", "gen/models/demo/model.safetensors", "gen/models/demo/NOTICE")
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
    subprocess.run(command, check=True, env=os.environ | {"UV_NO_CONFIG": "1"})
    [built] = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def tracked(root: Path) -> set[str]:
    """The files that git tracks, as paths with slashes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (root / name).exists()}


def sdist_problems(sdist: Path, files: set[str]) -> list[str]:
    """What the sdist lacks of these files, and what it has besides."""
    with tarfile.open(sdist) as archive:
        found = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in archive if member.isfile()}
    return _differences("the sdist", found - {"PKG-INFO"}, files)


def wheel_problems(wheel: Path, files: set[str]) -> list[str]:
    """What the wheel lacks of these files' package, what it has besides, and links that lead nowhere."""
    contents = read_wheel(wheel)
    package = {name for name in files if name.startswith("gen/")}
    problems = _differences("the wheel", {name for name in contents if ".dist-info/" not in name}, package)
    problems += [f"the wheel lacks {name}" for name in MUST_HAVE if name not in contents]
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


def install_and_run(wheel: Path, folder: Path, torch_index: str | None) -> None:
    """Install the wheel into a new environment in the folder, and use it from there.

    Raises:
        CalledProcessError: a command failed; it has said why.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = folder / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    commands = [[sys.executable, "-m", "venv", str(folder / "environment")]]
    if torch_index:
        commands.append([*pip, "--index-url", torch_index, "--no-deps", "torch"])
    commands += [
        [*pip, str(wheel)],
        [str(python), "-c", PROGRAM],
        [str(python.with_name("gen")), "--version"],
        [str(python.with_name("gen")), "generate", "Once upon a time", "--seed", "7", "--max-new-tokens", "24"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", help="an index that torch is installed from first, as its own one for the CPU")
    torch_index = parser.parse_args().torch_index
    dist = ROOT / "dist"
    rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        sdist, wheel = build("sdist", ROOT, dist), build("wheel", ROOT, dist)
        again = build("wheel", sdist, Path(temporary))
        problems = sdist_problems(sdist, tracked(ROOT)) + wheel_problems(wheel, tracked(ROOT))
        if read_wheel(again) != read_wheel(wheel):
            problems.append("the wheel that is built from the sdist differs from the checkout's")
        print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)], check=True)
        install_and_run(again, Path(temporary), torch_index)
    for built in (sdist, wheel):
        print(f"{built.relative_to(ROOT)}: {built.stat().st_size / 2**20:.1f} MiB")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
