"""Attention's Triton kernels: under Triton's interpreter and compiled where triton is installed, and run on a GPU."""

from pathlib import Path

import pytest
import torch

from tests.samplers.backends.test_triton_backend import needs_triton, run_cases

CASES = Path(__file__).with_name("triton_cases.py")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes of shared memory that a program may have


@needs_triton
def test_the_kernels_under_the_interpreter() -> None:
    run_cases(CASES, {"TRITON_INTERPRET": "1"})


@needs_triton
@pytest.mark.parametrize(
    ("capability", "dtype", "width", "asked"),
    [(80, "fp32", 256, 3), (80, "bf16", 80, 1), (90, "fp16", 64, 128), (100, "bf16", 128, 16)],
)
def test_the_kernels_compile_to_machine_code(
    capability: int, dtype: str, width: int, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compile to a cubin, which needs no GPU, and take no more shared memory than the GPU has."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget

    from gen.attention import triton_kernels, triton_steps

    sizes = triton_steps.tiles(asked, width, width, DTYPES[dtype])
    pointers = dict.fromkeys(["query", "keys", "values", "mask", "answer"], f"*{dtype}")
    pointers |= dict.fromkeys(["bests", "sums", "parts"], "*fp32") | dict.fromkeys(["scale", "hidden"], "fp32")
    for kernel in (triton_kernels.look, triton_kernels.join):
        constants = {name: sizes[name] for name in kernel.arg_names if name.isupper()}
        types = {name: pointers.get(name, "i32") for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
        aligned = {
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names) if name in pointers
        }
        source = triton.compiler.ASTSource(kernel, types, constants, aligned)
        options = {"num_stages": 2, "enable_fp_fusion": True}  # Triton 3.9 warns if the second is not said
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= SHARED[capability]


@pytest.mark.gpu
@needs_triton
def test_the_kernels_on_a_gpu() -> None:
    run_cases(CASES, {"TRITON_INTERPRET": "0"})
