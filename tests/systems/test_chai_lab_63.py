"""Chai-Lab 63: a program that is loaded and moved to another GPU keeps old devices and constants in its graph.

Their models were programs of torch.export, run as `torch.export.load(path).module().to(device)`. That moves parameters
and buffers; constants, literals and the devices of factories stay where the export was made, and the first operation on
tensors of both devices raises. Chai-Lab went back to TorchScript.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

import gen
from tests.helpers import byte_tokenizer
from tests.helpers.waits import waits
from tests.models.exported.programs import (
    PROMPTS,
    Everything,
    devices_in_code,
    devices_of_tensors,
    exported,
    ids,
    of_everything,
    written_on,
)
from virtual_gpus import DeviceMismatchError, virtual_gpus

TARGET = "cuda:1"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a parameter, a buffer, a constant, a literal, an arange, and a "cuda" that was baked in."""
    path = tmp_path_factory.mktemp("chai") / "model.pt2"
    torch.export.save(written_on(of_everything(), "cuda"), path)
    return path


def sent(path: Path, device: str) -> torch.Tensor:
    """Move the program as Chai-Lab did, and run it."""
    module = torch.export.load(path).module().to(device)
    with torch.inference_mode():
        logits: torch.Tensor = module(ids(1, 5).to(device))
    return logits


def texts(path_or_program: Path | ExportedProgram, device: str) -> list[str]:
    model = gen.from_exported(path_or_program, byte_tokenizer(), device=device)
    result: list[str] = gen.generate(model, PROMPTS, seed=3, max_new_tokens=6)
    assert {str(place) for place in model.placement.devices} == {device}
    assert devices_in_code(model.module) == devices_of_tensors(model.module) == {device}
    return result


def test_sent_as_they_did_it_raises(saved: Path) -> None:
    with virtual_gpus(2), pytest.raises(DeviceMismatchError, match="cuda:1 and cpu"):
        sent(saved, TARGET)


def test_gen_runs_it_on_gpu_1_and_nothing_is_left_elsewhere(saved: Path) -> None:
    expected = texts(saved, "cpu")
    reference = Everything()(ids(1, 5))
    with virtual_gpus(2), ThreadPoolExecutor(1) as pool:
        assert torch.cuda.current_device() == 0
        assert texts(saved, TARGET) == expected
        assert pool.submit(texts, saved, TARGET).result() == expected
        model = gen.from_exported(saved, byte_tokenizer(), device=TARGET)
        assert torch.equal(model.module(ids(1, 5).to(TARGET)).cpu(), reference)


def test_a_transformers_model_too(tmp_path: Path) -> None:
    torch.export.save(exported(), tmp_path / "model.pt2")
    expected = texts(exported(), "cpu")
    with virtual_gpus(2):
        assert texts(tmp_path / "model.pt2", TARGET) == expected


def test_the_host_never_waits_for_a_token(saved: Path) -> None:
    with virtual_gpus(2):
        model = gen.from_exported(saved, byte_tokenizer(), device=TARGET, eos_token_id=[])
        counts, _ = waits(lambda most: gen.generate(model, PROMPTS, seed=3, max_new_tokens=most), 4, 10)
    assert counts[0] == counts[1] <= 2


@pytest.mark.gpu(devices=2)
def test_on_two_gpus(saved: Path) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        sent(saved, TARGET)
    before = torch.cuda.memory_allocated(0)
    model = gen.from_exported(saved, byte_tokenizer(), device=TARGET)
    logits = model.module(ids(1, 5).to(TARGET))
    assert torch.cuda.memory_allocated(0) == before
    torch.testing.assert_close(logits.cpu(), Everything()(ids(1, 5)), rtol=1e-4, atol=1e-3)
    assert texts(saved, TARGET) == texts(saved, "cuda:0")
