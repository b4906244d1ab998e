"""The compiled exllamav2 and exllamav3 on a GPU, and the stubs compared with them; only `pytest -m gpu` runs these.

Each test also runs on virtual GPUs with the stubs instead of the compiled extensions, which shows that it works.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils import cpp_extension

import gen
from gen.models.exllama.exllamav2_model import CACHES
from gen.models.exllama.shared import import_exllama
from tests.models.exllama import exllamav3_ext
from tests.models.exllama.checkpoints import save, save_exl3
from tests.models.exllama.exl2 import BITS, random_exl2
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, plain_of, tokens_of
from tests.models.exllama.packages import exllamav2_stub, two_gpus
from tests.models.exllama.stub_cases import CASES, NONE, Case
from virtual_gpus import no_host_sync

PROMPTS = ["Ada", "hello there, world"]
LOADERS: dict[str, Callable[..., Any]] = {"exllamav2": gen.from_exllamav2, "exllamav3": gen.from_exllamav3}
SOURCES = {"exllamav2": ("exllamav2_ext", "ext_bindings.cpp"), "exllamav3": ("exllamav3_ext", "bindings.cpp")}
SHAPES = ["llama", "tied llama", "qwen2", "qwen3", "gemma2", "mistral", "theta", "linear", "llama3"]
REAL = pytest.param("real", marks=pytest.mark.gpu)


def stub(name: str) -> Any:
    return exllamav2_stub() if name == "exllamav2" else exllamav3_ext


def compiled(name: str) -> Any:
    """The package's own extension, or a skip that says what is missing. It is not compiled here: that takes minutes."""
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


def extensions(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Gives a package's extension: a stub, on virtual GPUs, or the compiled one."""
    with two_gpus() if request.param == "virtual" else nullcontext():
        yield stub if request.param == "virtual" else compiled


extension = pytest.fixture(params=["virtual", REAL])(extensions)
two_extensions = pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu(devices=2))])(extensions)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose sizes are multiples of 128, as EXL3 requires."""
    folder = tmp_path_factory.mktemp("wide")
    save(folder, vocab_size=384, num_key_value_heads=4)
    return folder


def declared(name: str) -> dict[str, int]:
    """The functions that an extension's sources declare, and how many arguments they take; 0 for classes."""
    folder = Path(str(find_spec(name).origin)).parent / SOURCES[name][0]  # type: ignore[union-attr]
    headers = sorted([*folder.rglob("*.h"), *folder.rglob("*.cuh")], key=lambda file: len(file.parts))
    text = "\n".join(file.read_text(errors="replace") for file in headers)
    bound = (folder / SOURCES[name][1]).read_text() + text
    text = re.sub(r"//.*", "", text)
    given = dict(reversed(re.findall(r"\b(\w+)\s*\(([^();]*)\)\s*;", text)))  # the outermost headers count
    found = dict.fromkeys(re.findall(r"class_<(\w+)", bound), 0)
    for function in re.findall(r'm\.def\("(\w+)"', bound):
        arguments = re.sub(r"<[^>]*>", "", given.get(function, ""))  # drops types with commas of their own
        found[function] = 1 + arguments.count(",") if arguments else 0
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_function_of_a_stub_is_compared_and_takes_as_many_arguments_as_what_is_compiled(name: str) -> None:
    bound = declared(name)
    stubs = {key: value for key, value in vars(stub(name)).items() if key in bound or key == "paged_attention"}
    assert {key for case in CASES[name] for key in case.names} == stubs.keys()
    for key, value in stubs.items():
        if bound.get(key):
            parameters = inspect.signature(value).parameters.values()
            many = any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters)
            assert bound[key] >= len(parameters) - 1 if many else bound[key] == len(parameters), key


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, case, id=f"{name} {case.names[0]}") for name in CASES for case in CASES[name]],
)
@torch.inference_mode()
def test_a_stub_makes_the_numbers_of_the_extension(name: str, case: Case, extension: Callable[[str], Any]) -> None:
    device = torch.device("cuda:0")
    found = [one.float().cpu() for one in case.make(extension(name), device)]
    expected = [one.float().cpu() for one in case.make(stub(name), device)]
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert torch.allclose(one, other, rtol=0.02, atol=case.near), (one - other).abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_extension_is_built(name: str) -> None:
    assert hasattr(compiled(name), "rms_norm")


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, shape) for name in LOADERS for shape in SHAPES), ("exllamav3", "yarn")]
)
def test_logits_of_weights_in_float16_are_those_of_transformers(
    name: str, shape: str, extension: Callable[[str], Any], folders: Callable[[str], Path]
) -> None:
    extension(name)
    compare(LOADERS[name](folders(shape), device=0), plain_of(folders(shape)))


@torch.inference_mode()
def test_the_dequantiser_gives_what_exl2_weights_were_made_from(extension: Callable[[str], Any]) -> None:
    ext, ext_module = extension("exllamav2"), import_exllama("exllamav2.ext")
    for bits in (*((size,) for size in BITS), BITS, (5, 3)):
        tensors, values = random_exl2(512, 256, torch.Generator().manual_seed(1), bits=bits)
        tensors = {key: tensor.to("cuda:0") for key, tensor in tensors.items()}
        tensors["q_perm"] = torch.argsort(tensors["q_invperm"]).to(torch.int)
        handle = ext_module.make_q_matrix(tensors, NONE)
        found = torch.empty(512, 256, dtype=torch.float16, device="cuda:0")
        ext.reconstruct(handle, found)
        assert torch.allclose(found.T.cpu(), values, rtol=2e-3, atol=1e-6), bits


@pytest.mark.parametrize(
    ("shape", "options", "near"),
    [("llama", {}, 2 * NEAR), ("qwen3", {}, 2 * NEAR), ("llama", {"cache": "q8"}, 4 * NEAR)],
    ids=str,
)
def test_logits_of_exl2_weights_are_those_of_their_values_in_float16(
    shape: str, options: dict[str, Any], near: float, exl2: Callable[[str], Path], extension: Callable[[str], Any]
) -> None:
    extension("exllamav2")
    folder = exl2(shape)
    compare(gen.from_exllamav2(folder / "exl2", device=0, **options), plain_of(folder / "plain"), near)


@pytest.fixture(scope="session")
def converted(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """The wide model, quantised by exllamav3's own converter, which needs a GPU."""
    work = tmp_path_factory.mktemp("converted")

    def convert() -> Path:
        if not (work / "out" / "config.json").exists():
            save_file({"input_ids": torch.randint(0, 256, (4, 128))}, work / "rows.safetensors")
            command = [sys.executable, "-m", "exllamav3.conversion.convert_model", "-i", wide, "-o", work / "out"]
            command += ["-w", work / "work", "-b", "6", "-hb", "6", "-cd", work / "rows.safetensors", "-cr", "4"]
            done = subprocess.run([*map(str, command), "-cc", "128"], capture_output=True, text=True)
            assert (work / "out" / "config.json").exists(), done.stdout[-2000:] + done.stderr[-2000:]
        return work / "out"

    return convert


@pytest.fixture
def exl3(
    extension: Callable[[str], Any], converted: Callable[[], Path], wide: Path, tmp_path: Path
) -> Callable[[], Path]:
    """A folder with EXL3 weights: converted ones, or the stub's of 16 bits."""

    def folder() -> Path:
        if extension is compiled:
            extension("exllamav3")
            return converted()
        if not (tmp_path / "exl3").exists():
            save_exl3(tmp_path / "exl3", wide)
        return tmp_path / "exl3"

    return folder


def test_logits_of_converted_weights_are_those_of_what_the_package_dequantises(
    exl3: Callable[[], Path], wide: Path
) -> None:
    model, plain = gen.from_exllamav3(exl3(), device=0), Plain(wide)
    quantised = [module for module in model.exl3_model if hasattr(getattr(module, "inner", None), "trellis")]
    assert len(quantised) == 2 * 7 + 1
    for module in quantised:
        weight = module.inner.get_weight_tensor().T.cpu()
        own = plain.model.get_submodule(module.key).weight.data
        assert (weight.float() - own.float()).square().mean().sqrt() < 0.1 * own.float().std()  # for 6 bits and more
        own.copy_(weight)
    compare(model, plain, near=2 * NEAR)


@pytest.mark.parametrize("cache", [cache for cache in CACHES if cache != "fp16"])
def test_logits_over_a_quantised_cache_of_exllamav2_come_close(
    cache: str, llama: Path, extension: Callable[[str], Any]
) -> None:
    extension("exllamav2")
    exact, found = (gen.from_exllamav2(llama, device=0, cache=kind) for kind in ("fp16", cache))
    assert 0 < distance(found, exact) < {"q8": 0.05, "q6": 0.5, "q4": 0.5}[cache]


def test_the_fewer_bits_the_cache_of_exllamav3_has_the_further_are_its_logits(
    llama: Path, extension: Callable[[str], Any]
) -> None:
    extension("exllamav3")
    exact = gen.from_exllamav3(llama, device=0)
    distances = [distance(gen.from_exllamav3(llama, device=0, cache_bits=bits), exact) for bits in (8, 5, 4, 2)]
    assert distances == sorted(distances)
    assert 0 < distances[0] < 0.05


KINDS = ["exllamav2", "exllamav2 with EXL2", "exllamav3", "exllamav3 with EXL3"]


@pytest.fixture(params=KINDS)
def load(
    request: pytest.FixtureRequest,
    extension: Callable[[str], Any],
    llama: Path,
    exl2: Callable[[str], Path],
    exl3: Callable[[], Path],
) -> Callable[[int], Any]:
    """Loads a kind of model onto a GPU."""
    extension(request.param[:9])
    ways: dict[str, Callable[[int], Any]] = {
        "exllamav2": lambda device: gen.from_exllamav2(llama, device=device),
        "exllamav2 with EXL2": lambda device: gen.from_exllamav2(exl2("llama") / "exl2", device=device),
        "exllamav3": lambda device: gen.from_exllamav3(llama, device=device),
        "exllamav3 with EXL3": lambda device: gen.from_exllamav3(exl3(), device=device),
    }
    return ways[request.param]


@torch.inference_mode()
def test_a_step_never_waits(load: Callable[[int], Any]) -> None:
    model = load(0)
    rows = model.new_rows(2, 64)
    token_ids = rows.prefill(slice(0, 2), ids(*PROMPTS)).argmax(-1, keepdim=True)
    for _ in range(3):  # the first calls load kernels and capture steps
        token_ids = rows.step(token_ids, 64).argmax(-1, keepdim=True)
    with no_host_sync():
        for _ in range(4):
            token_ids = rows.step(token_ids, 64).argmax(-1, keepdim=True)
            rows.reorder(torch.arange(1, -1, -1, device=token_ids.device), 64)


def test_texts_do_not_depend_on_what_is_queued_on_the_callers_stream(
    load: Callable[[int], Any], extension: Callable[[str], Any]
) -> None:
    model, beams = load(0), gen.samplers.beam_search(3)
    expected = tokens_of(generated(model, PROMPTS, beams, 4))
    size = 4096 if extension is compiled else 16
    work = torch.randn(size, size, device="cuda:0")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(50):
                work = work @ work / size
            assert tokens_of(generated(model, PROMPTS, beams, 4)) == expected


@pytest.mark.parametrize("name", LOADERS)
def test_a_model_on_the_second_gpu_gives_the_texts_of_the_first(
    name: str, llama: Path, two_extensions: Callable[[str], Any]
) -> None:
    two_extensions(name)
    first, second = (LOADERS[name](llama, device=device) for device in (0, 1))
    assert second.placement.devices == (torch.device("cuda:1"),)
    sampler = gen.samplers.multinomial(temperature=0.8)
    expected = tokens_of(generated(first, PROMPTS, sampler))
    with torch.cuda.device(0):
        assert tokens_of(generated(second, PROMPTS, sampler)) == expected
        assert torch.cuda.current_device() == 0


def compare(model: Any, plain: Plain, near: float = NEAR) -> None:
    """Logits after a prompt of many tokens and of few, and some steps, are those of transformers."""
    prompts, new = ids("The quick brown fox jumps over the lazy dog. " * 4, "one"), ids("the lazy", "and five")
    prompts[0] = prompts[0][: (getattr(model, "window", None) or model.context_length) - 8]
    found = logits_of(model, prompts, new)
    for row, (prompt, tokens) in enumerate(zip(prompts, new, strict=True)):
        expected = plain.logits(prompt, tokens)
        assert (found[row] - expected).abs().max() < near
        assert expected.std() > 5 * near, "the logits hardly vary"


def distance(model: Any, exact: Any) -> float:
    """The distance of the steps' logits from another model's, in standard deviations."""
    prompts, new = ids("The quick brown fox", "one"), ids("abcd", "efgh")
    found, expected = (logits_of(one, prompts, new)[:, 1:] for one in (model, exact))
    return float((found - expected).square().mean().sqrt() / expected.std())
