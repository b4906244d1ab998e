"""Checks that every extra resolves from the public Python registry alone, to the versions that constraints.txt pins.

For Linux on x86-64 and each Python below: no find-links, further index or configuration of this machine takes part, so
that what works here works on a new machine too. Nothing is installed or downloaded but what packages say they need.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORM = "x86_64-unknown-linux-gnu"


def resolve(extra: str, python: str) -> set[str]:
    """What an extra needs, each as "name==version".

    Raises:
        CalledProcessError: it does not resolve; uv has said why.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--extra", extra]
    command += ["--constraints", "constraints.txt", "--python-version", python, "--python-platform", PLATFORM]
    command += ["--no-header", "--no-annotate", "--no-python-downloads"]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    done = subprocess.run(
        command, cwd=ROOT, env=own | {"UV_NO_CONFIG": "1"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return pins(done.stdout)


def pins(requirements: str) -> set[str]:
    """The lines "name==version" of a requirements file, names as the registry writes them: lower case, dashes."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    parts = (line.partition("==") for line in lines if "==" in line)
    return {f"{name.lower().replace('_', '-').replace('.', '-')}=={version}" for name, _, version in parts}


def main() -> int:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    unpinned = set()
    for extra in extras:
        for python in PYTHONS:
            try:
                found = resolve(extra, python)
            except subprocess.CalledProcessError:
                print(f"[{extra}] does not resolve for Python {python}; uv has said why above.", file=sys.stderr)
                return 1
            print(f"[{extra}] for Python {python}: {len(found)} packages")
            unpinned |= found - pinned
    if unpinned:
        print("constraints.txt lacks these pins:", *sorted(unpinned), sep="\n", file=sys.stderr)
    return bool(unpinned)


if __name__ == "__main__":
    sys.exit(main())
