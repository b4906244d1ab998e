"""exllamav2 and exllamav3 as they are compiled, on a GPU; run by themselves: `pytest -m gpu`, without the stubs."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

import gen
from gen.models.exllama.importing import import_exllama
from gen.testing import no_host_sync
from tests.models.exllama import exllamav2_ext as stub
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, tokens_of

pytestmark = pytest.mark.gpu
PROMPTS = ["Ada", "hello there, world"]
LOADERS: dict[str, Callable[..., Any]] = {"exllamav2": gen.from_exllamav2, "exllamav3": gen.from_exllamav3}


def compiled(name: str) -> Any:
    """The package's own extension; skips with what is missing. It is not compiled here: that takes minutes."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    built = Path(cpp_extension._get_build_directory(f"{name}_ext", False), f"{name}_ext.so")
    if find_spec(f"{name}_ext") is None and not built.exists():
        pytest.skip(f"{name} is not compiled for this Python and torch: run `python -c 'import {name}'` once")
    try:
        import_exllama(name)
    except gen.ModelError as error:
        pytest.skip(str(error))
    return getattr(import_exllama(f"{name}.ext"), f"{name}_ext")


def test_the_stub_normalises_as_the_extension_does() -> None:
    extension = compiled("exllamav2")
    x, weight = torch.randn(3, 5, 128, device="cuda").half(), torch.randn(128, device="cuda").half()
    found, expected = torch.empty_like(x), torch.empty_like(x)
    extension.rms_norm(x, weight, found, 1e-5)
    stub.rms_norm(x, weight, expected, 1e-5)
    assert torch.allclose(found, expected, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("padded", [False, True])
def test_the_stub_rotates_as_the_extension_does(padded: bool) -> None:
    extension = compiled("exllamav2")
    found = torch.randn(2, 4, 4, 32, device="cuda").half()
    expected = found.clone()
    angles = torch.rand(1, 1, 64, 16, device="cuda").repeat(1, 1, 1, 2)
    sin, cos = angles.sin().half(), angles.cos().half()
    offsets = torch.tensor([[0], [-3]], dtype=torch.int32, device="cuda" if padded else "meta")
    for rotate, x in ((extension.rope_, found), (stub.rope_, expected)):
        rotate(x, sin, cos, 5, 4, 32, offsets, True)
    assert torch.allclose(found, expected, atol=0.01, rtol=0.01)


def test_the_stub_caps_as_the_extension_does() -> None:
    extension = compiled("exllamav2")
    found = 50 * torch.randn(4, 64, device="cuda").half()
    expected = found.clone()
    extension.softcap_(found, 30.0)
    stub.softcap_(expected, 30.0)
    assert torch.allclose(found, expected, atol=0.05, rtol=0.01)


@pytest.mark.parametrize("name", LOADERS)
def test_logits_are_those_of_transformers(name: str, llama: Path) -> None:
    compiled(name)
    prompts, new = ids("The quick brown fox jumps over", "one"), ids("the lazy", "and five")
    found, plain = logits_of(LOADERS[name](llama, device="cuda"), prompts, new), Plain(llama)
    for row, (prompt, tokens) in enumerate(zip(prompts, new, strict=True)):
        assert (found[row] - plain.logits(prompt, tokens)).abs().max() < NEAR


@pytest.mark.parametrize("cache", ["q8", "q6", "q4"])
def test_texts_over_a_quantised_cache_come_close(cache: str, llama: Path) -> None:
    compiled("exllamav2")
    prompts, new = ids("The quick brown fox", "one"), ids("abcd", "efgh")
    exact = logits_of(gen.from_exllamav2(llama, device="cuda"), prompts, new)
    found = logits_of(gen.from_exllamav2(llama, device="cuda", cache=cache), prompts, new)
    assert (found - exact).square().mean().sqrt() < exact.std() / 2


@pytest.mark.parametrize("name", LOADERS)
@torch.inference_mode()
def test_a_step_never_waits_and_texts_do_not_depend_on_what_is_queued(name: str, llama: Path) -> None:
    compiled(name)
    model = LOADERS[name](llama, device="cuda")
    expected = tokens_of(generated(model, PROMPTS, gen.samplers.greedy()))
    work = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(50):
            work = work @ work
        assert tokens_of(generated(model, PROMPTS, gen.samplers.greedy())) == expected
    rows = model.new_rows(2, 64)
    token_ids = rows.fill(slice(0, 2), ids(*PROMPTS)).argmax(-1, keepdim=True)
    rows.step(token_ids, 64)
    with no_host_sync():
        for _ in range(8):
            token_ids = rows.step(token_ids, 64).argmax(-1, keepdim=True)
