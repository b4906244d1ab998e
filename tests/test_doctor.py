"""`gen doctor`: a sound model passes, and each kind of mistake is named."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gen
from gen import doctor
from gen.devices import Placement
from gen.doctor import diagnose, examine
from gen.models.transformers.model import TransformersModel
from tests.cli.test_commands import Capture, run
from tests.helpers import ScriptedModel, byte_tokenizer, encoder_tokenizer, stored, tiny_encoder, tiny_model
from tests.models.exported.programs import Everything, exported, program_of
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import virtual_gpus

pytestmark = pytest.mark.usefixtures("short_examinations")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tiny_model("llama"), tmp_path_factory.mktemp("model"))


def on_gpu_1(shape: str = "llama") -> TransformersModel:
    return gen.from_transformers(tiny_model(shape).to("cuda:1"), byte_tokenizer())


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("shape", ["llama", "gemma3"])
def test_a_sound_model_has_no_problems(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LONG", 8)  # so that steps are captured, as for users
    with virtual_gpus(2):
        diagnosis = examine(on_gpu_1(shape))
    assert diagnosis.problems == []
    assert set(diagnosis.waits) == {"greedy", "multinomial", "multinomial, filtered", "beam search"}
    assert all(waits.per_token == 0 and waits.per_call <= 2 for waits in diagnosis.waits.values())


@pytest.mark.parametrize("shape", ["gpt2", "mixtral"])
def test_a_split_model_has_no_problems(shape: str) -> None:
    with virtual_gpus(2):
        model = gen.from_transformers(split(tiny_model(shape), shape), byte_tokenizer())
        assert examine(model).problems == []


@pytest.mark.parametrize("kind", ["transformers", "everything"])
def test_an_exported_program_has_no_problems(kind: str) -> None:
    program = exported() if kind == "transformers" else program_of(Everything())
    with virtual_gpus(2):
        diagnosis = examine(gen.from_exported(program, byte_tokenizer(), device="cuda:1", eos_token_id=[]))
    assert diagnosis.problems == []
    assert all(waits.per_token == 0 and waits.per_call <= 2 for waits in diagnosis.waits.values())


def test_an_exported_programs_constant_left_behind_is_named() -> None:
    program = program_of(Everything())
    with virtual_gpus(2):
        model = gen.from_exported(program, byte_tokenizer(), device="cuda:1")
        model.module.constant = torch.zeros(16)
        diagnosis = examine(model)
    assert "attribute constant holds cpu, but runs on cuda:1" in diagnosis.problems[0]
    assert "it does not run" in diagnosis.problems[1]


def test_an_encoder_is_examined_too() -> None:
    with virtual_gpus(2):
        model = gen.from_transformers_encoder(tiny_encoder().to("cuda:1"), encoder_tokenizer())
        assert examine(model).problems == []
        model.hf_model.embeddings.position_ids = torch.zeros_like(model.hf_model.embeddings.position_ids, device="cpu")
        assert "buffer embeddings.position_ids (1, 24) int64 is on cpu" in examine(model).problems[0]


def test_a_buffer_left_behind_is_named() -> None:
    with virtual_gpus(2):
        model = on_gpu_1()
        rotary = model.hf_model.model.rotary_emb
        rotary.register_buffer("inv_freq", rotary.inv_freq.to("cuda:0"), persistent=False)
        diagnosis = examine(model)
    assert diagnosis.problems == ["buffer model.rotary_emb.inv_freq (4,) float32 is on cuda:0, but runs on cuda:1"]
    assert diagnosis.as_dict()["clean"] is False and "\nPROBLEM: buffer model.rotary_emb" in str(diagnosis)


def test_a_parameter_left_behind_is_named_and_the_error_shown() -> None:
    with virtual_gpus(2):
        model = on_gpu_1()
        model.hf_model.model.norm.to("cuda:0")
        problems = examine(model).problems
    assert problems[0] == "parameter model.norm.weight (32,) float32 is on cuda:0, but runs on cuda:1"
    assert problems[1].startswith("it does not run: Expected all tensors to be on the same device")


def test_devices_baked_into_attributes_are_named() -> None:
    with virtual_gpus(2):
        model = on_gpu_1()
        model.hf_model.lm_head.where = torch.device("cuda:0")
        model.hf_model.lm_head.names = {"first": "cuda:0", "any": "cuda"}
        model.hf_model.lm_head.kept = [torch.zeros(2)]
        problems = examine(model).problems
    assert [problem.split(",")[0] for problem in problems] == [
        "attribute lm_head.where holds cuda:0",
        "attribute lm_head.names['first'] holds cuda:0",
        "attribute lm_head.kept[0] holds cpu",
    ]


class _Peeking(nn.Module):
    """A head that reads its logits on the host."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.out_features = head.out_features
        self.weight = head.weight

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        if float(logits[0, 0, 0]) == 1e9:
            raise ValueError("never")
        return logits


def test_a_host_sync_of_the_model_is_named_by_line() -> None:
    with virtual_gpus(2):
        model = on_gpu_1()
        model.hf_model.lm_head = _Peeking(model.hf_model.lm_head)
        problems = examine(model).problems
    line = _Peeking.forward.__code__.co_firstlineno + 2
    assert len(problems) == 4  # one for each sampler
    assert all("the host waits 1 x a token: item, bool, int or float at tests/test_doctor.py" in p for p in problems)
    assert all(f":{line} in forward" in problem for problem in problems)


def test_the_command_tells_the_placement_and_exits_0(saved: Path, capsys: Capture) -> None:
    assert run("doctor", str(saved), "--devices", "3") == 0
    out = capsys.readouterr().out
    assert "3 virtual GPUs" in out
    assert "placement   cuda:2 (float32)" in out
    assert "greedy: 0 host syncs a token" in out
    assert out.endswith("no problems\n")


def test_the_command_takes_exported_programs_encoders_and_split_models(
    saved: Path, tmp_path: Path, capsys: Capture
) -> None:
    torch.export.save(exported(), tmp_path / "model.pt2")
    stored(tiny_encoder(), tmp_path / "encoder", encoder_tokenizer())
    commands = [
        [str(tmp_path / "model.pt2"), "--tokenizer", str(saved)],
        [str(tmp_path / "encoder"), "--encoder"],
        [str(saved), "--device-map", "auto"],
    ]
    for command, placement in zip(commands, ["cuda:1 (", "cuda:1 (", "cuda:0, cuda:1 ("], strict=True):
        assert run("doctor", *command) == 0
        assert f"placement   {placement}" in capsys.readouterr().out
    assert run("doctor", str(saved), "--encoder", "--device-map", "auto") == 2


def test_the_command_gives_json(saved: Path, capsys: Capture) -> None:
    assert run("doctor", str(saved), "--device", "cuda:1", "--devices", "2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["clean"] is True
    assert told["placement"]["layer_devices"] == ["cuda:1", "cuda:1"]
    assert told["syncs"]["greedy"]["per_token"] == 0


def test_on_a_cpu_it_says_that_no_wait_can_show(saved: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("doctor", str(saved), "--device", "cpu", "--devices", "0") == 0
    out = capsys.readouterr().out
    assert "placement   cpu (float32)" in out
    assert "note: without a CUDA device no host sync can show" in out
    assert "host syncs a token" not in out
    assert out.endswith("no problems\n")
    assert run("doctor", str(saved), "--device", "cpu", "--devices", "0", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["clean"], told["syncs"]) == (True, {})
    assert "no host sync can show" in told["notes"][0]


def test_on_a_cpu_a_model_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    monkeypatch.setattr(model.hf_model.lm_head, "weight", nn.Parameter(torch.zeros(300, 31)))
    assert "it does not run" in examine(model).problems[-1]


def test_a_model_of_another_library_is_examined() -> None:
    with virtual_gpus(2):
        diagnosis = examine(ScriptedModel("abc"))
    assert diagnosis.problems == []
    assert diagnosis.notes == ["ScriptedModel has no hf_model: its weights cannot be looked at"]
    assert set(diagnosis.waits) == {"greedy", "multinomial", "multinomial, filtered", "beam search"}


def test_a_model_of_another_library_with_logits_elsewhere_is_a_problem() -> None:
    with virtual_gpus(2):
        model = ScriptedModel("abc")
        model.placement = Placement(input_device=torch.device("cpu"), logits_device=torch.device("cuda:1"))
        assert "the logits (1, 259) float32 is on cpu, expected cuda:1" in examine(model).problems[0]


def test_a_program_without_a_tokenizer_is_refused_with_what_to_give(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "model.pt2").write_bytes(b"PK")
    assert run("doctor", str(tmp_path / "model.pt2")) == 2
    assert "is a program of torch.export, which has no tokenizer; give one, as with --tokenizer" in (
        capsys.readouterr().err
    )


def test_a_device_that_does_not_exist_is_refused(saved: Path, capsys: Capture) -> None:
    assert run("doctor", str(saved), "--device", "cuda:7", "--devices", "2") == 1
    assert "cuda:7 does not exist" in capsys.readouterr().err


def test_without_a_gpu_diagnose_takes_virtual_ones(saved: Path) -> None:
    assert diagnose(saved).virtual == 2


@pytest.mark.gpu
def test_diagnose_takes_real_devices_where_there_are_any(saved: Path) -> None:
    assert diagnose(saved).virtual == 0
