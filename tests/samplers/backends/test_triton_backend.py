"""The Triton kernels: under Triton's interpreter and compiled for GPUs where triton is installed, and run on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.forked import Forked

CASES = Path(__file__).with_name("triton_cases.py")
FOR_FLOATS, FOR_INTEGERS = (
    ["scales", "maxima", "masses", "floors", "thresholds", "logprobs"],
    ["listed", "counts"],
)
TYPES = dict.fromkeys(FOR_FLOATS, "*fp32") | dict.fromkeys(FOR_INTEGERS, "*i32") | {"top_p": "*fp64", "min_p": "*fp64"}
TYPES |= dict.fromkeys(["keys", "top_k", "quotas", "token_ids"], "*i64") | dict.fromkeys(
    ["stride", "vocab", "blocks"], "i32"
)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run_cases(cases: Path, environment: dict[str, str]) -> None:
    """Run in a process of its own, since triton decides at its import whether it interprets.

    For the interpreter that is a fork, in which triton is imported anew; CUDA needs a new process. The cases need
    nothing of transformers, whose import would take longer than most of them.
    """
    # the interpreter computes with numpy, which warns of intended overflows
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--noconftest", str(cases), "-W", "ignore::RuntimeWarning"]
    if environment == {"TRITON_INTERPRET": "1"}:
        code, stdout, stderr = Forked(lambda: _interpreted(arguments)).end()
    else:
        command = [sys.executable, "-m", "pytest", *arguments]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        code, stdout, stderr = done.returncode, done.stdout, done.stderr
    assert code == 0, stdout[-4000:] + stderr[-1000:]


def _interpreted(arguments: list[str]) -> None:
    """Forget triton, and the modules that have kernels, and run pytest; its library can be loaded only once."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [*sys.modules]:
        package, _, last = name.rpartition(".")
        if (name.partition(".")[0] == "triton" and "._C" not in name) or last.startswith("triton_"):
            del sys.modules[name]
            if hasattr(sys.modules.get(package), last):
                delattr(sys.modules[package], last)
    sys.exit(pytest.main(arguments))


@needs_triton
def test_the_kernels_under_the_interpreter() -> None:
    run_cases(CASES, {"TRITON_INTERPRET": "1"})


@needs_triton
@pytest.mark.parametrize(
    ("capability", "dtype", "block", "cut"),
    [
        *((80, "fp32", 0, cut) for cut in ("TOP_K", "TOP_P", "MIN_P")),
        (80, "fp16", 0, "none"),
        (90, "bf16", 1, "all"),
    ],
)
def test_the_kernels_compile_to_machine_code(
    capability: int, dtype: str, block: int, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compile to a cubin, which needs no GPU, with the compiler of a launch, which treats a 1 as a constant."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget

    from gen.samplers.backends import triton_cuts, triton_kernels

    sizes = {"WIDTH": 2048, "GROUP": 32, "HAS_CUT": cut != "none"}
    sizes |= {f"HAS_{name}": cut in (name, "all") for name in ("TOP_K", "TOP_P", "MIN_P")}
    kernels = [triton_cuts.list_blocks, triton_cuts.find_cut] if cut != "none" else []
    if cut in ("none", "all"):  # the other kernels do not know which cut there is
        kernels += [triton_kernels.survey, triton_kernels.most_likely, triton_kernels.draw]
    for kernel in kernels:
        constants = {name: sizes[name] for name in kernel.arg_names if name.isupper()}
        constants |= {name: 1 for name in ("blocks", "vocab", "stride") if block and name in kernel.arg_names}
        types = TYPES | {"logits": f"*{dtype}"} | dict.fromkeys(constants, "constexpr")
        source = triton.compiler.ASTSource(kernel, {name: types[name] for name in kernel.arg_names}, constants)
        options = {"num_warps": 8, "enable_fp_fusion": False}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]


@pytest.mark.gpu
@needs_triton
def test_the_kernels_on_a_gpu() -> None:
    run_cases(CASES, {"TRITON_INTERPRET": "0"})
