"""Do Outlines' own tests pass with gen's samplers instead of its own, and after gen's `patch()`?

    python -m benchmarks.outlines.suite

Makes an environment with Outlines 0.0.46, takes its tests of samplers and generator from its source distribution, and
runs them unmodified: with its samplers, with gen's, and with `gen.integrations.outlines.patch()`.
`benchmarks/outlines/end_to_end.py`, which generates text, regular expressions and JSON with Outlines and a tiny model,
runs each way too; then `benchmarks/outlines/exl2.py`, which shows issue 909 and exl2 models. Prints each test's
results; exits with 1 if they differ in more than test_multinomial, which expects the draws of another random function,
or if a test of exl2 models fails.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.measuring import publish, read_arguments

ROOT = Path(__file__).parents[2]
PACKAGES = os.pathsep.join([str(ROOT), str(ROOT / "virtual_gpus" / "src")])  # gen, and the plugin that pytest loads
TESTS = ["tests/test_samplers.py", "tests/generate/test_generator.py"]
END_TO_END = ROOT / "benchmarks" / "outlines" / "end_to_end.py"
EXL2 = ROOT / "benchmarks" / "outlines" / "exl2.py"
MAY_DIFFER = {"test_multinomial"}

# Everything that Outlines needs except torch, pytest and a few libraries of theirs, which the running interpreter has.
# pip must never resolve these by itself: the package that it finds under the name pyairports is not the one that
# Outlines 0.0.46 wants.
PINS = """
outlines==0.0.46 transformers==4.41.2 tokenizers==0.19.1 numpy==1.26.4 numba==0.68.1 llvmlite==0.50.0 datasets==2.20.0
pyarrow==17.0.0 pyarrow-hotfix==0.7 pandas==2.2.3 pytz==2026.6 six==1.17.0 fsspec==2024.5.0 dill==0.3.8
multiprocess==0.70.19 xxhash==4.1.0 huggingface_hub==0.36.2 accelerate==0.31.0 pycountry==26.2.16 interegular==0.3.3
lark==1.3.1 pydantic==2.14.3 cloudpickle==3.1.2 diskcache==5.6.3 nest-asyncio==1.6.0 jsonschema==4.26.0
jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==2026.9.1 attrs==26.1.0 requests==2.34.2 urllib3==2.8.0
certifi==2026.10.18 charset-normalizer==3.5.2 aiohttp==3.14.5 aiohappyeyeballs==2.7.1 aiosignal==1.4.0
frozenlist==1.8.0 multidict==7.2.1 propcache==0.5.4 yarl==1.25.1
"""

# Imported before Outlines, so that every `from outlines.samplers import ...` in it and in its tests finds gen's.
PLUGIN = """
import sys
import gen.samplers
sys.modules["outlines.samplers"] = gen.samplers
import outlines.generate.api
assert outlines.generate.api.MultinomialSampler is gen.samplers.MultinomialSampler
"""

# Patches Outlines after its import, as users do.
PATCH = """
import outlines
import gen.integrations.outlines
gen.integrations.outlines.patch()
"""


def main() -> None:
    given = read_arguments(__doc__, environment=(ROOT / "build" / "outlines-0.0.46", "made if it does not exist"))
    python, source = _environment(given.environment.absolute())
    tests = [*TESTS, str(END_TO_END)]
    ways = {
        "Outlines' samplers": _run(python, source, tests),
        "gen's samplers": _run(python, source, tests, PLUGIN),
        "patch()": _run(python, source, tests, PATCH),
    }
    theirs, *others = ways.values()
    names = list(dict.fromkeys(name for results in ways.values() for name in results))
    rows = [{"test": name} | {way: results.get(name, "-") for way, results in ways.items()} for name in names]
    exl2 = _run(python, source, [str(EXL2)])
    for title, results in (ways | {"exl2 models": exl2}).items():
        print(f"{title}: {sum(r == 'passed' for r in results.values())} of {len(results)} passed")
    differ = [name for name in names if any(theirs.get(name) != results.get(name) for results in others)]
    publish(given, tests=rows, different=differ, exl2=exl2)
    unexplained = {name.rsplit("::")[-1] for name in differ} - MAY_DIFFER
    if not names or unexplained or set(exl2.values()) != {"passed"}:
        sys.exit(1)


def _environment(folder: Path) -> tuple[Path, Path]:
    """The environment's interpreter and the unpacked source distribution; both are made if they are missing."""
    python, source = folder / "bin" / "python", folder / "outlines-0.0.46"
    if source.exists():
        return python, source
    print(f"making {folder.name}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--only-binary", ":all:", *PINS.split()], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    stub = packages / "pyairports"
    stub.mkdir()
    (stub / "__init__.py").touch()
    (stub / "airports.py").write_text("AIRPORT_LIST: list[object] = []\n")
    with tempfile.TemporaryDirectory() as temporary:
        download = ["download", "--quiet", "--no-deps", "--no-binary", "outlines", "--dest", temporary]
        subprocess.run([*pip, *download, "outlines==0.0.46"], check=True)
        [archive] = Path(temporary).glob("outlines-0.0.46.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return python, source


def _run(python: Path, source: Path, tests: list[str], plugin: str = "") -> dict[str, str]:
    """The outcome of each test, where a plugin of pytest with this text is loaded first."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        (Path(temporary) / "use_gen.py").write_text(plugin)
        options = ["-q", "-p", "no:cacheprovider", f"--rootdir={source}", "-c", str(source / "pyproject.toml")]
        subprocess.run(
            [str(python), "-m", "pytest", *options, f"--junitxml={report}", "-p", "use_gen", *tests],
            cwd=source,
            env={**os.environ, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{temporary}", "OUTLINES_CACHE_DIR": temporary},
            stdout=sys.stderr,
        )
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{_file(case)}::{case.get('name')}": _outcome(case) for case in cases}


def _file(case: ElementTree.Element) -> str:
    return (case.get("classname") or END_TO_END.stem).rsplit(".")[-1]


def _outcome(case: ElementTree.Element) -> str:
    return next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")


if __name__ == "__main__":
    main()
