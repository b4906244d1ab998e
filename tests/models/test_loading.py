"""Loading: where a model is looked for and at what cost, errors of a folder, adapters, quantisation."""

import json
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub
import peft
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

import gen
from gen.models import checks
from tests.helpers import byte_tokenizer, encoder_tokenizer, stored, tiny_encoder, tiny_model
from tests.helpers.forked import Forked
from tests.helpers.noting import noted

PROMPTS = ["Once upon a time", "One"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A whole checkpoint."""
    return save(tmp_path / "whole")


def save(path: Path, **settings: Any) -> Path:
    return stored(tiny_model(), path, **settings)


def greedy(model: Any, **settings: Any) -> Any:
    return gen.generate(model, PROMPTS, sampler=gen.samplers.greedy(), max_new_tokens=12, **settings)


class Hub:
    """A hub without a network: it logs which files it is asked for, and answers."""

    def __init__(self, files: Path | None, error: str | None = None) -> None:
        self.asked: list[str] = []
        self._files = files
        self._error = error
        self.http = import_module(type(huggingface_hub.get_session()).__module__.split(".")[0])  # httpx, or its heir

    def client(self) -> Any:
        return self.http.Client(transport=self.http.MockTransport(self._answer))

    def _answer(self, request: Any) -> Any:
        if "/resolve/" in request.url.path:
            self.asked.append(f"{request.method} {request.url.path}")
        assert request.url.host == "mirror.example"
        if self._error == "dead":
            raise self.http.ConnectError("Name or service not known", request=request)
        if self._error:
            return self.http.Response(404, headers={"X-Error-Code": self._error}, request=request)
        assert self._files is not None
        path = self._files / request.url.path.rsplit("/", 1)[1]
        commit = {"X-Repo-Commit": "0" * 40}
        if not request.url.path.startswith("/organisation/name/resolve/") or not path.is_file():
            return self.http.Response(404, headers=commit | {"X-Error-Code": "EntryNotFound"}, request=request)
        content = path.read_bytes() if request.method == "GET" else b""
        headers = commit | {"ETag": f'"{path.name}"', "Content-Length": str(path.stat().st_size)}
        return self.http.Response(200, headers=headers, content=content, request=request)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    """Hub clients talk to a `Hub` at mirror.example, with an empty cache; a pause between retries is an error."""

    def connect(files: Path | None = None, error: str | None = None) -> Hub:
        hub = Hub(files, error)
        huggingface_hub.set_client_factory(hub.client)
        return hub

    def pause(seconds: float) -> None:
        raise AssertionError(f"a pause of {seconds} s")

    import_module("gen.loop.engine_thread")  # before: it would keep this sleep for all later tests
    monkeypatch.setattr("time.sleep", pause)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example")
    template = "https://mirror.example/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield connect
    huggingface_hub.set_client_factory(huggingface_hub.utils._http.default_client_factory)


@pytest.mark.parametrize("load", [gen.load, gen.load_encoder])
def test_a_mistyped_path_costs_one_request_and_no_pause(load: Callable[[str], Any], online: Callable[..., Hub]) -> None:
    hub = online(error="dead")
    with pytest.raises(gen.ModelError, match=r"'modles/llama' is no directory.*mirror.example cannot be asked"):
        load("modles/llama")
    assert hub.asked == ["HEAD /modles/llama/resolve/main/config.json"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RepoNotFound", "'some/name' is no directory, and https://mirror.example has no such model"),
        ("GatedRepo", "'some/name' is gated: accept its terms at https://mirror.example/some/name"),
        ("RevisionNotFound", "https://mirror.example/some/name has no revision 'old'"),
    ],
)
def test_what_the_hub_says_of_a_model_is_said_after_one_request(
    code: str, message: str, online: Callable[..., Hub]
) -> None:
    hub = online(error=code)
    with pytest.raises(gen.ModelError, match=message):
        gen.load("some/name", revision="old")
    assert len(hub.asked) == 1


def test_offline_nothing_is_asked(tmp_path: Path, online: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    hub = online(error="dead")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(gen.ModelError, match=r"'some/name' is no directory.*HF_HUB_OFFLINE is set"):
        gen.load("some/name")
    with pytest.raises(gen.ModelError, match="'some--name' is no directory and no Hub id"):
        gen.load("some--name")
    with pytest.raises(gen.ModelError, match=r"no directory '.*/missing'; give one, a Hub id"):
        gen.load(tmp_path / "missing")
    assert hub.asked == []


def test_a_mirror_serves_a_model_and_the_cache_does_after_it(
    saved: Path, online: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(gen.load(saved, device="cpu"))
    online(saved)
    assert greedy(gen.load("organisation/name", device="cpu")) == expected
    dead = online(error="dead")
    assert greedy(gen.load("organisation/name", device="cpu")) == expected
    assert dead.asked == ["HEAD /organisation/name/resolve/main/config.json"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert greedy(gen.load("organisation/name", device="cpu")) == expected
    assert len(dead.asked) == 1


def test_a_file_that_has_a_models_name_by_chance_is_not_taken_for_a_model(
    tmp_path: Path, online: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(gen.load("demo", device="cpu"))
    hub = online(error="dead")
    (tmp_path / "organisation").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "gpt2", "organisation/name", "other.log"):
        (tmp_path / name).write_text("no model")
    assert greedy(gen.load("demo", device="cpu")) == expected
    for name in ("gpt2", "organisation/name", "other.log"):
        for load in (gen.load, gen.load_encoder):
            with pytest.raises(gen.ModelError, match=f"'{name}' is a file; .* If you mean a model on the Hub, rename"):
                load(name)
    for path in (Path("gpt2"), "./gpt2", str(tmp_path / "gpt2")):  # these name nothing but a file
        with pytest.raises(gen.ModelError, match="gpt2' is no GGUF file: it begins with b'no model'"):
            gen.load(path)
    (tmp_path / "gpt2").write_bytes(b"GGUF\x01\x00\x00\x00" + bytes(100))
    with pytest.raises(gen.ModelError, match="GGUF of version 1"):
        gen.load("gpt2")
    assert hub.asked == []


def cut(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def rename_weights(path: Path) -> None:
    (path / "model.safetensors").rename(path / "weights.gguf")


def quantised_with(method: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        config["quantization_config"] = {"quant_method": method, "bits": 4.0}
        (path / "config.json").write_text(json.dumps(config))

    return change


def with_tensor(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        header = json.dumps({name: {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))

    return change


@pytest.mark.parametrize(
    ("break_", "message"),
    [
        (lambda path: (path / "config.json").unlink(), r"has no config.json, so .* it has .*model.safetensors"),
        (lambda path: (path / "config.json").write_text("{'a': 1}"), r"config.json' is no valid JSON file: Expecting"),
        (lambda path: (path / "config.json").write_text("[]"), r"config.json' must be a JSON object, got list"),
        (rename_weights, r"has no weights: expected model.safetensors or .* it has .*weights.gguf"),
        (cut, r"model.safetensors' has \d+ bytes, its header says \d+; download it again"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\1"), "has 1 bytes and ends within its header"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "has 0 bytes and ends within its header"),
        (
            lambda path: (path / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"abcd"),
            "model.safetensors' is no safetensors file: Expecting value",
        ),
        (
            lambda path: (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
            "is a pointer of Git LFS, not the weights",
        ),
        (quantised_with("exl2"), r"is an EXL2 checkpoint: load it with gen.from_exllamav2\(path, device=...\)"),
        (with_tensor("model.layers.0.mlp.up_proj.q_weight"), r"is an EXL2 checkpoint"),
        (with_tensor("model.layers.0.mlp.up_proj.trellis"), r"is an EXL3 checkpoint"),
    ],
)
def test_a_broken_folder_is_refused_with_what_is_wrong(
    saved: Path, break_: Callable[[Path], object], message: str
) -> None:
    break_(saved)
    with pytest.raises(gen.ModelError, match=message):
        gen.load(saved, device="cpu")


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    path = save(tmp_path / "sharded", max_shard_size="40KB")
    shards = sorted(path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert greedy(gen.load(path, device="cpu")) == greedy(gen.from_transformers(tiny_model(), byte_tokenizer()))
    shards[1].unlink()
    with pytest.raises(gen.ModelError, match=f"lacks 1 of {len(shards)} files of weights.*{shards[1].name}"):
        gen.load(path, device="cpu")
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(gen.ModelError, match=r"index\.json' has no weight_map"):
        gen.load(path, device="cpu")


def test_a_broken_encoder_is_refused_too(tmp_path: Path) -> None:
    stored(tiny_encoder(), tmp_path, encoder_tokenizer())
    gen.load_encoder(tmp_path, device="cpu")
    cut(tmp_path)
    with pytest.raises(gen.ModelError, match="its header says"):
        gen.load_encoder(tmp_path, device="cpu")


uses_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft reads what is going


def adapter_of(base: Path, path: Path, **settings: Any) -> tuple[Path, PreTrainedModel]:
    """A saved LoRA adapter whose weights change the output, and the model with it."""
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=4, **settings)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_()
    adapted.save_pretrained(str(path))
    return path, adapted.merge_and_unload().eval()


@uses_peft
@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_is_loaded_onto_its_base_model(saved: Path, tmp_path: Path, settings: Any) -> None:
    path, merged = adapter_of(saved, tmp_path / "adapter", **settings)
    expected = greedy(gen.from_transformers(merged, byte_tokenizer()))
    assert greedy(gen.load(path, device="cpu")) == expected
    assert expected != greedy(gen.load(saved, device="cpu"))
    byte_tokenizer(bos=False).save_pretrained(path)  # its own tokenizer is used instead of the base model's
    assert gen.load(path, device="cpu").tokenizer.encode("a") == [97]


@uses_peft
def test_an_adapter_on_a_float16_model_computes_in_float32_on_a_cpu(saved: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(saved).half().save_pretrained(saved)
    path, merged = adapter_of(saved, tmp_path / "adapter")
    model = gen.load(path, device="cpu")
    assert model.placement.dtype == torch.float32 and model.placement.packed_dtype is None
    assert greedy(model) == greedy(gen.from_transformers(merged.float(), byte_tokenizer()))
    assert gen.load(path, device="cpu", dtype="float16").placement.dtype == torch.float16


@uses_peft
def test_an_adapter_without_its_base_model_or_peft_says_what_is_missing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = adapter_of(saved, tmp_path / "adapter")
    saved.rename(tmp_path / "elsewhere")
    with pytest.raises(gen.ModelError, match=r"an adapter for the base model '.*whole', which is not found: no direct"):
        gen.load(path)
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(gen.ModelError, match="names no base_model_name_or_path"):
        gen.load(path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(gen.ModelError, match="is a PEFT adapter, which needs peft: pip install peft"):
        gen.load(path)


@uses_peft
def test_an_adapter_without_its_weights_says_so(saved: Path, tmp_path: Path) -> None:
    path, _ = adapter_of(saved, tmp_path / "adapter")
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(gen.ModelError, match=r"adapter_model.safetensors' has \d+ bytes, its header says"):
        gen.load(path)
    weights.unlink()
    with pytest.raises(gen.ModelError, match=r"adapter' is a PEFT adapter without weights: .* no adapter_model"):
        gen.load(path)


class HalvingConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """A quantiser that needs only torch: it halves the head."""

    def __init__(self, **settings: Any) -> None:
        self.quant_method = "halving"


class Halving(HfQuantizer):  # type: ignore[misc]
    requires_calibration = False

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **settings: Any) -> PreTrainedModel:
        with torch.no_grad():
            model.lm_head.weight.mul_(0.5)
        return model

    def is_serializable(self, *arguments: Any, **settings: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


@pytest.mark.parametrize("load", [gen.load, gen.load_encoder, gen.from_transformers])
@pytest.mark.parametrize(
    ("arguments", "advice", "elsewhere"),
    [
        (
            {"load_in_8bit": True},
            r"load_in_8bit; write quantization_config=transformers.BitsAndBytesConfig\(load_in_8bit",
            "got 'load_in_8bit'",
        ),
        ({"max_memory": {0: "4GB"}}, "max_memory; write nothing of the kind; load it with transformers, for gen", None),
        (
            {"token": "x", "n_gpu_layers": 3},
            'n_gpu_layers; write it into .* HF_TOKEN, and device="cuda:0"',
            "n_gpu_layers; write it into .* HF_TOKEN",
        ),
        ({"gguf_file": "a.gguf"}, "the path of the file as the first argument", None),
        ({"devise": 0}, "got 'devise'", None),
    ],
)
def test_arguments_of_other_loaders_are_refused_with_what_to_write(
    load: Any, arguments: Any, advice: str, elsewhere: str | None
) -> None:
    """`elsewhere` is for functions that may lack what the advice names."""
    if load is not gen.load:
        advice = elsewhere or advice
    with pytest.raises(gen.ArgumentError, match=advice) as caught:
        load("demo", **arguments)
    assert isinstance(caught.value, TypeError)


def test_a_revision_of_a_directory_is_refused(tmp_path: Path) -> None:
    for load, path in ((gen.load, tmp_path), (gen.load_encoder, tmp_path), (gen.load, "demo")):
        with pytest.raises(gen.ArgumentError, match=r"revision is for models on the Hub, and '.*' is a directory"):
            load(path, revision="v2")


def test_the_tokenizer_is_transformers_own_where_mistral_common_is_installed(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = noted(monkeypatch, AutoTokenizer, "from_pretrained", lambda *_, **options: options["mistral_format"])
    gen.load(saved)
    assert asked == [False]  # None would take mistral-common's for a folder with a tekken.json


def test_quantization_config_is_passed_on(saved: Path) -> None:
    register_quantization_config("halving")(HalvingConfig)
    register_quantizer("halving")(Halving)
    try:
        halved = gen.load(saved, device="cpu", quantization_config=HalvingConfig())
    finally:
        del AUTO_QUANTIZATION_CONFIG_MAPPING["halving"], AUTO_QUANTIZER_MAPPING["halving"]
    expected = gen.load(saved, device="cpu").hf_model.lm_head.weight / 2
    torch.testing.assert_close(halved.hf_model.lm_head.weight, expected)


def test_a_forked_process_loads_though_another_thread_was_loading_and_renews_torchs_threads_first(saved: Path) -> None:
    """The first call of `set_num_threads` replaces torch's pool; without it, threads that load would race for it."""
    holder = Thread(target=checks._LOADING.acquire)
    holder.start()
    holder.join()

    def program() -> None:
        signal.alarm(60)  # ends it if it waits for ever
        renewed: list[int] = []
        vars(torch)["set_num_threads"] = renewed.append
        print(renewed)
        for _ in range(2):
            gen.load(saved, device="cpu")  # CUDA cannot be used in a fork
            print(renewed)

    try:
        code, out, err = Forked(program).end()
    finally:
        checks._LOADING._at_fork_reinit()
    assert (code, out) == (0, "[]\n[1]\n[1]\n"), err
