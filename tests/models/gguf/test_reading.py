"""GGUF files as models and as folders; the oracle is the tiny transformers model that each file was written from."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import gen
from gen.errors import ArgumentError, ModelError
from gen.models.gguf import reading
from gen.models.gguf.reading import convert, read_gguf
from gen.models.transformers.model import TransformersModel
from tests.helpers import BOS, EOS, OTHER_EOS, by_transformers
from tests.helpers.noting import noted
from tests.models.gguf.files import MODELS, write_gguf
from virtual_gpus import virtual_gpus

PROMPTS = ["the thing", "über 12", "a"]
TOKEN_IDS = [[BOS, 259, 101, 260, 105, 110, 103], [BOS, 195, 188, 98, 101, 114, 32, 49, 50], [BOS, 97]]
greedy = gen.samplers.greedy()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return path, write_gguf(path, metadata={"tokenizer.ggml.eot_token_id": OTHER_EOS})


def texts(model: TransformersModel, new_tokens: int = 8) -> list[list[int]]:
    completions = gen.generate(model, PROMPTS, sampler=greedy, max_new_tokens=new_tokens, details=True)
    return [completion.token_ids for completion in completions]


def test_greedy_texts_are_those_of_the_model_that_was_written(written: tuple[Path, PreTrainedModel]) -> None:
    path, original = written
    expected = [by_transformers(original, ids, 8, [EOS, OTHER_EOS]) for ids in TOKEN_IDS]
    assert texts(gen.load(path, device="cpu")) == expected
    assert texts(gen.load(str(path), device_map="auto")) == expected


def test_the_chat_template_is_the_files(written: tuple[Path, PreTrainedModel]) -> None:
    tokenizer = gen.load(written[0]).tokenizer
    assert tokenizer.chat_text([{"role": "user", "content": "Hi"}]) == "[user] Hi\n[assistant] "


@pytest.mark.parametrize(
    ("kind", "most"),
    [("Q4_0", 0.6), ("Q4_1", 0.6), ("Q5_0", 0.4), ("Q5_1", 0.4), ("Q8_0", 0.06), ("F16", 1e-3), ("BF16", 0.02)],
)
def test_quantised_logits_are_near_those_of_the_model(kind: str, most: float, tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "model.gguf", quantisation=gguf.GGMLQuantizationType[kind])
    loaded = gen.load(tmp_path / "model.gguf", device="cpu", dtype="float32", probe=False).hf_model
    ids = torch.tensor([TOKEN_IDS[0]])
    error = (loaded(ids).logits - original(ids).logits).std() / original(ids).logits.std()
    assert 0 < error < most


@pytest.mark.parametrize("architecture", MODELS)
def test_a_converted_folder_gives_the_files_texts(architecture: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "model.gguf", tmp_path / "new" / "folder"
    write_gguf(path, architecture, metadata={"tokenizer.ggml.eot_token_id": OTHER_EOS})
    convert(path, folder, dtype="float16")
    assert [entry.name for entry in folder.parent.iterdir()] == ["folder"]
    converted = gen.load(folder, device="cpu", dtype="float16", probe=False)
    original = gen.load(path, device="cpu", dtype="float16")
    assert converted.placement.dtype == torch.float16
    assert converted.eos_token_ids == original.eos_token_ids == (EOS, OTHER_EOS)
    message = [{"role": "user", "content": "Hi"}]
    assert converted.tokenizer.chat_text(message) == original.tokenizer.chat_text(message)
    assert [converted.tokenizer.encode(prompt) for prompt in PROMPTS] == TOKEN_IDS
    assert texts(converted, 5) == texts(original, 5)
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in original.hf_model.state_dict().items())


def test_a_folder_with_files_is_not_written_over(written: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    for target in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ArgumentError, match="exists and is not an empty folder; give a new one"):
            convert(written[0], target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    convert(written[0], tmp_path / "empty")
    assert gen.load(tmp_path / "empty").eos_token_ids == (EOS, OTHER_EOS)


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="cut within its header"):
        convert(tmp_path / "bad.gguf", tmp_path / "folder")
    with pytest.raises(ArgumentError, match="dtype must be a floating type"):
        convert(tmp_path / "bad.gguf", tmp_path / "folder", dtype="int8")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot write"):
        convert(tmp_path / "bad.gguf", tmp_path / "file" / "folder")
    assert {entry.name for entry in tmp_path.iterdir()} == {"bad.gguf", "file"}


def test_what_does_not_fit_is_refused_before_weights_are_read(
    written: tuple[Path, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = written
    weights = 4 * sum(parameter.numel() for parameter in original.parameters())
    monkeypatch.setattr(
        gguf, "dequantize", lambda *args: pytest.fail("weights were read") if args[0].size > 100 else None
    )
    monkeypatch.setattr(reading, "available_bytes", lambda: weights - 1)
    with pytest.raises(ModelError, match=r"GB of memory in float32, .* GB are free: give dtype='bfloat16' or another"):
        gen.load(path, device="cpu")
    with pytest.raises(ModelError, match=r"in bfloat16, .*: give another device, or take a smaller model"):
        monkeypatch.setattr(reading, "available_bytes", lambda: 1000)
        gen.load(path, device="cpu", dtype="bfloat16")


def test_it_goes_to_the_gpu_that_is_asked_for_if_it_fits_there(written: tuple[Path, PreTrainedModel]) -> None:
    path, original = written
    with virtual_gpus(2):
        model = gen.load(path, device="cuda:1")
        assert model.placement.devices == (torch.device("cuda:1"),)
        assert texts(model) == [by_transformers(original, ids, 8, [EOS, OTHER_EOS]) for ids in TOKEN_IDS]
    with virtual_gpus(2, memory=1000), pytest.raises(ModelError, match=r"GB of cuda:1 in float32, 0\.0 GB are free"):
        gen.load(path, device="cuda:1")


def test_names_are_worked_out_once_for_a_file_and_strings_read_by_no_slow_reader(
    written: tuple[Path, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = noted(monkeypatch, gguf, "get_tensor_name_map", lambda *_: None)
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: pytest.fail("strings are read element by element"))
    model, _ = read_gguf(written[0])
    assert len(list(model.modules())) > 20
    assert len(calls) == 1 + len(list(model.children()))


def test_threads_can_load_at_once(written: tuple[Path, PreTrainedModel]) -> None:
    path, original = written
    tie_weights, ids = PreTrainedModel.tie_weights, torch.tensor([TOKEN_IDS[0]])
    # the demo model has tied weights; transformers leaves them untied for good if threads load at once
    sources = [path, "demo", path, "demo"]
    with ThreadPoolExecutor(len(sources)) as threads:
        for _ in range(4):
            models = list(threads.map(lambda source: gen.load(source, device="cpu"), sources))
            assert PreTrainedModel.tie_weights is tie_weights
            for model in models[::2]:
                torch.testing.assert_close(model.hf_model(ids).logits, original(ids).logits, rtol=0, atol=1e-4)


def test_reading_shows_progress_on_stderr(
    written: tuple[Path, PreTrainedModel], capfd: pytest.CaptureFixture[str]
) -> None:
    logging.enable_progress_bar()  # the command line's tests turn it off
    gen.load(written[0], device="cpu")
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(r"Reading weights: +100%", err)


def test_an_option_acts_or_is_refused_for_a_file(written: tuple[Path, PreTrainedModel]) -> None:
    assert gen.load(written[0], device="cpu", replay=True).replay
    with pytest.raises(ArgumentError, match="are for checkpoints in Hugging Face format"):
        gen.load(written[0], revision="main")
    with pytest.raises(ArgumentError, match="are for checkpoints in Hugging Face format"):
        gen.load(written[0], quantization_config={})
