"""Outlines 0.0.46 with an exl2 model on cuda:1: its issue 909, layer by layer, and the same programs patched.

Run by `benchmarks.outlines.suite`, on virtual GPUs with the tests' stub of exllamav2's kernels. The oracle is the same
program with a transformers model on the CPU.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from outlines import generate, models
from transformers import AutoModelForCausalLM, AutoTokenizer

import gen.samplers
from gen.integrations import outlines as integration
from tests.models.exllama.checkpoints import change, save
from tests.models.exllama.packages import two_gpus_of_exllamav2
from virtual_gpus import no_host_sync

PROMPTS = ["Once upon a time", "x", "hello there"]
MIXED = "Expected all tensors to be on the same device"
SAMPLERS: dict[str, Any] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(temperature=0.8, top_k=20),
    "several": gen.samplers.multinomial(samples=2),
    "beams": gen.samplers.beam_search(3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exl2")
    save(folder, pad_token_id=0)
    change(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", pad_token="</s>")
    return folder


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with two_gpus_of_exllamav2():
        yield
        integration.unpatch()


@pytest.fixture
def plain(folder: Path) -> Any:
    """The same weights in transformers, on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float16).eval()
    return models.Transformers(model, AutoTokenizer.from_pretrained(folder, padding_side="left"))


def run(model: Any, prompts: Any = PROMPTS[0], sampler: Any = None, device: str = "cuda:1") -> Any:
    """The program of issue 909."""
    generator = generate.text(model, *([sampler] if sampler else []))
    rng = torch.Generator(device).manual_seed(3)
    return generator(prompts, max_tokens=6, stop_at=["\n", "."], rng=rng)


@pytest.mark.parametrize(
    ("mended", "gpu_split", "error", "message"),
    [
        ([], None, AttributeError, "'NoneType' object has no attribute"),  # loras=[None]
        (["loras"], None, RuntimeError, MIXED),  # ids on cuda:1, the embedding in main memory
        (
            ["loras", "ids"],
            None,
            RuntimeError,
            MIXED,
        ),  # logits on cuda:0, where load_autosplit begins; weights on cuda:1
        (["loras", "ids"], "0,99999", AttributeError, "has no attribute 'narrow'"),  # a cache without tensors
    ],
)
def test_issue_909_fails_in_layers(
    mended: list[str], gpu_split: str | None, error: Any, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exllamav2.model import ExLlamaV2

    theirs = ExLlamaV2.forward

    def forward(self: Any, input_ids: Any, *arguments: Any, loras: Any = None, **named: Any) -> Any:
        loras = None if "loras" in mended and loras == [None] else loras
        return theirs(self, input_ids.cpu() if "ids" in mended else input_ids, *arguments, loras=loras, **named)

    monkeypatch.setattr(ExLlamaV2, "forward", forward)
    with pytest.raises(error, match=message):
        run(models.exl2(str(folder), device="cuda:1", gpu_split=gpu_split))


@pytest.mark.parametrize("prompts", [PROMPTS[0], PROMPTS], ids=["one", "batch"])
@pytest.mark.parametrize("sampler", [None, *SAMPLERS])
def test_patched_it_gives_the_texts_of_the_cpu(sampler: str | None, prompts: Any, folder: Path, plain: Any) -> None:
    with integration.patch():
        model = models.exl2(str(folder), device="cuda:1")
        assert model.gen_model.placement.devices == (torch.device("cuda:1"),)
        assert torch.cuda.current_device() == 0
        chosen = SAMPLERS[sampler] if sampler else None
        assert run(model, prompts, chosen) == run(plain, prompts, chosen, device="cpu")


def test_patched_regular_expressions_streams_and_loras_work(folder: Path, plain: Any) -> None:
    with integration.patch():
        exact = models.exl2(str(folder), device="cuda:1")
        model = models.exl2(str(folder), device="cuda:1", cache_q4=True, gpu_split="0.0118,80")
        assert len(model.gen_model.placement.devices) == 2
        made = generate.regex(model, r"[0-9]{3}-[ab]", gen.samplers.beam_search(2))(PROMPTS)
        assert all(re.fullmatch(r"[0-9]{3}-[ab]", text) for texts in made for text in texts)
        streams = [generate.text(one, gen.samplers.greedy()).stream("Ada", max_tokens=8) for one in (exact, plain)]
        assert list(streams[0]) == list(streams[1])
        model.update_lora(None)
        with pytest.raises(gen.ModelError, match="No LoRA found"):
            model.update_lora(str(folder))


def test_patched_the_host_reads_once_a_token_as_outlines_does(folder: Path) -> None:
    with integration.patch():
        generator = generate.text(models.exl2(str(folder), device="cuda:1"), gen.samplers.greedy())
        counts = []
        for tokens in (8, 24):
            with no_host_sync(count=True) as report:
                generator("Ada", max_tokens=tokens)
            counts.append(report.count)
    assert (counts[1] - counts[0]) / 16 == 1, report


def test_unpatch_restores_every_name() -> None:
    def names() -> dict[tuple[str, str], Any]:
        loaded = {key: module for key, module in sys.modules.items() if key.partition(".")[0] == "outlines"}
        found = {(key, name): value for key, module in loaded.items() for name, value in vars(module).items()}
        functions = [value for value in found.values() if hasattr(value, "registry")]
        for function in functions:
            for kind, one in function.registry.items():
                found[str(kind), one.__name__] = one.__defaults__
        return {key: value for key, value in found.items() if not key[1].startswith("__")}

    before = names()
    integration.patch()
    changed = {key for key, value in names().items() if value is not before.get(key)}
    assert {("outlines.samplers", "multinomial"), ("outlines.generate.api", "BeamSearchSampler")} <= changed
    assert {("outlines.models", "exl2"), ("outlines.generate.text", "multinomial")} <= changed
    once = names()
    integration.patch()
    assert names() == once
    integration.unpatch()
    integration.unpatch()
    after = names()
    assert after.keys() == before.keys()
    assert [key for key, value in after.items() if value is not before[key]] == []
