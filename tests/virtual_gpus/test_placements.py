"""Placement fuzz finds a planted mistake of each kind, at its line, in the placements that have it, and nowhere else.

The oracle is the place of the mistake: each model below has one, in a line that ends with `# bad`.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers import tiny_model
from tests.helpers.architectures import HYBRIDS, SHAPES
from tests.models.transformers.vision_helpers import PICTURES, prompts, tiny_processor, tiny_vision_model
from virtual_gpus import ArgumentError, virtual_gpus
from virtual_gpus.placements import Report, examine, main, parts

HERE = Path(__file__)
LINES = HERE.read_text(encoding="utf-8").splitlines()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.proj(x))


class Right(nn.Module):
    """Embedding, two layers, a norm and a head, with no mistake."""

    layer: type[nn.Module] = Layer

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList([self.layer(), self.layer()])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 8)

    def through_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.norm(self.through_layers(self.embed(ids))))


class Scales(nn.Module):
    """No weights but a buffer, which no file keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.full((8,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return x * self.get_buffer("by")


class EndsWithoutWeights(Right):
    def __init__(self) -> None:
        super().__init__()
        self.scales = Scales()

    def forward(self, ids: Tensor) -> Any:
        return self.scales(super().forward(ids))


class OnTheCpu(Right):
    """A. A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4)

    def through_layers(self, x: Tensor) -> Tensor:
        return super().through_layers(x) * self.scale  # bad


class BetweenLayers(Right):
    """B. A parameter of the whole model, which it adds after each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Parameter(torch.ones(2, 4))

    def through_layers(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) + self.middle[number]  # bad
        return x


class LossElsewhere(Right):
    """C. The loss is computed between a layer's output and the ids, in training alone."""

    def forward(self, ids: Tensor) -> Any:
        hidden = self.through_layers(self.embed(ids))
        if torch.is_grad_enabled():
            return functional.cross_entropy(hidden.flatten(0, 1), ids.flatten() % 4)  # bad
        return self.head(self.norm(hidden))


class ReadsAWeight(Right):
    """D. It reads the weight of a module that accelerate has offloaded."""

    def forward(self, ids: Tensor) -> Any:
        hidden = self.norm(self.through_layers(self.embed(ids)))
        return hidden @ self.head.weight.to(hidden.device).T  # bad


class LateBuffer(Right):
    """A buffer that the first forward makes, and that stays where this forward ran."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: Tensor | None = None

    def forward(self, ids: Tensor) -> Any:
        if self.positions is None:
            self.positions = torch.arange(8.0, device=ids.device)
        x = self.embed(ids)
        x = x * self.positions[: ids.shape[1], None]  # bad
        return self.head(self.norm(self.through_layers(x)))


class CurrentDevice(Right):
    """H. A bare "cuda" is the current device, and not that of the layer."""

    def through_layers(self, x: Tensor) -> Tensor:
        x = super().through_layers(x)
        return x * torch.ones(4, device="cuda" if x.is_cuda else "cpu")  # bad


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.full((4,), 0.5))
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0]  # bad


class BackwardMixes(Right):
    """A backward of its own, with a tensor that its forward made on the CPU."""

    def through_layers(self, x: Tensor) -> Tensor:
        halved: Tensor = _Halves.apply(super().through_layers(x))  # type: ignore[no-untyped-call]
        return halved


class GeneratesWrongly(Right):
    """B. Only `generate` mixes devices: it adds logits to a score that is on the device of the embedding."""

    def generate(self, ids: Tensor, **options: object) -> Tensor:
        hidden = self.through_layers(self.embed(ids))
        scores = torch.zeros(hidden.shape, device=self.embed.weight.device)
        scores = scores + hidden  # bad
        return scores.argmax(-1)


class ChangesItsInputs(Right):
    """No mistake, but the ids are others after a forward."""

    def forward(self, ids: Tensor) -> Any:
        out = super().forward(ids)
        ids[:, 0] = 0
        return out


class OtherNumbers(Right):
    """No error at all: the second GPU computes something else."""

    def through_layers(self, x: Tensor) -> Tensor:
        x = super().through_layers(x)
        return x * torch.linspace(1, 1.1, 4, device=x.device) if x.device == torch.device("cuda:1") else x


def lines_of(model: type[nn.Module]) -> list[int]:
    """The line of the mistake in a class above; a class without one has none."""
    start = next(number for number, line in enumerate(LINES) if line.startswith(f"class {model.__name__}("))
    if model is BackwardMixes:
        start = next(number for number, line in enumerate(LINES) if line.startswith("class _Halves("))
    end = next(number for number in range(start + 1, len(LINES)) if LINES[number].startswith(("class ", "def ")))
    return [number + 1 for number in range(start, end) if LINES[number].endswith("# bad")]


def of(model: type[nn.Module], **options: Any) -> Report:
    def make_model() -> Any:
        inputs = torch.tensor([[1, 2, 3]])
        return model(), {"ids": inputs} if hasattr(model, "generate") else inputs

    return examine(make_model, **options)


def test_a_right_model_runs_in_every_placement() -> None:
    report = of(Right)
    assert report.placements == 1 + 4 + 6 + 4 + 4 + 3  # one GPU, two, three, CPU, disk, and after a run on the CPU
    assert str(report) == "Right: 0 of 22 placements fail (forward, backward)"


@pytest.mark.parametrize("store", ["cpu", "disk"])
def test_a_part_without_weights_is_stored_nowhere(store: str) -> None:
    """accelerate writes no file if nothing on the disk has weights, and then finds none."""
    assert of(EndsWithoutWeights, devices=[("cuda:0", store)]).failures == ()


@pytest.mark.parametrize(
    ("model", "step", "devices"),
    [
        (OnTheCpu, "forward", ("cuda:1",)),
        (BetweenLayers, "forward", ("cuda:0", "cuda:1")),
        (LossElsewhere, "backward", ("cuda:0", "cuda:1")),
        (ReadsAWeight, "forward", ("cuda:0", "cpu")),
        (ReadsAWeight, "forward", ("cuda:0", "disk")),
        (LateBuffer, "forward", ("cuda:1",)),
        (CurrentDevice, "forward", ("cuda:1",)),
        (CurrentDevice, "forward", ("cuda:0", "cuda:1", "cuda:2")),
        (BackwardMixes, "backward", ("cuda:1",)),
        (GeneratesWrongly, "generate", ("cuda:0", "cuda:1")),
    ],
)
def test_a_planted_mistake_is_found_at_its_line(model: type[nn.Module], step: str, devices: tuple[str, ...]) -> None:
    report = of(model, devices=[devices])
    [line] = lines_of(model)
    found = {(failure.step, failure.where.split(" in ")[0]) for failure in report.failures}
    assert found == {(step, f"tests/virtual_gpus/{HERE.name}:{line}")}, str(report)


def test_a_late_buffer_fails_only_after_a_run_elsewhere() -> None:
    report = of(LateBuffer)
    assert {failure.placement.late for failure in report.failures} == {True}
    assert "after a run on the CPU" in str(report)


def test_each_step_has_the_inputs_as_they_were_given() -> None:
    report = of(ChangesItsInputs, devices=[("cuda:1",), ("cuda:0", "cuda:1")])
    assert not report.failures, str(report)


def test_other_numbers_are_found_without_an_error() -> None:
    report = of(OtherNumbers, devices=[("cuda:0", "cuda:1")])
    assert {failure.where for failure in report.failures} == {""}
    assert "differs from the CPU's by up to" in str(report)
    assert {failure.placement.places["layers.1"] for failure in report.failures} == {"cuda:1"}, str(report)


@pytest.mark.parametrize(("more", "fails"), [(0.002, False), (1.0, True)])
def test_a_single_number_is_held_to_its_size(more: float, fails: bool) -> None:
    class WithANumber(Right):
        def forward(self, ids: Tensor) -> Any:
            out = super().forward(ids)
            return out, torch.full((1,), 1e4 + more * (out.device.index == 1), device=out.device)

    assert bool(of(WithANumber, devices=[("cuda:1",)]).failures) == fails


def test_tied_weights_stay_together() -> None:
    class Tied(Right):
        def __init__(self) -> None:
            super().__init__()
            self.head.weight = self.embed.weight

    assert parts(Tied()) == {name: name for name in ("embed", "layers.0", "layers.1", "norm")} | {"head": "embed"}
    report = of(Tied)
    assert not report.failures, str(report)


def test_many_cuts_are_drawn_from() -> None:
    assert of(Right, devices=[("cuda:0", "cuda:1", "cuda:2")], most=2).placements == 3  # with the late one


@pytest.mark.parametrize("shape", ["llama", "gpt2", "lfm2"])
def test_models_of_transformers_need_no_arguments(shape: str) -> None:
    assert shape in {*SHAPES, *HYBRIDS}
    report = examine(lambda: tiny_model(shape), [("cuda:1",), ("cuda:0", "cuda:1"), ("cuda:0", "disk")])
    assert report.steps == ("forward", "backward", "generate")
    assert not report.failures, str(report)


def test_models_that_read_images_are_given_them_in_every_step() -> None:
    def make_model() -> Any:
        prompt, processor = prompts("qwen2_5_vl")[0], tiny_processor("qwen2_5_vl")
        return tiny_vision_model("qwen2_5_vl"), dict(
            processor(text=[prompt], images=[PICTURES[0]], return_tensors="pt")
        )

    report = examine(make_model, [("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cuda:0", "disk")], most=2)
    assert report.steps == ("forward", "backward", "generate")
    assert not report.failures, str(report)


def test_an_open_block_is_used_and_lists_for_more_gpus_are_left_out() -> None:
    with virtual_gpus(2):
        assert of(Right).placements == 1 + 1 + 4 + 1 + 4 + 4


def test_a_model_that_says_nothing_of_its_inputs_is_refused() -> None:
    with pytest.raises(ArgumentError, match="return the model and the arguments"):
        examine(Right)
    with pytest.raises(ArgumentError, match="does not run on the CPU"):
        examine(lambda: (Right(), torch.ones(2, 2)))


def test_without_accelerate_only_single_devices_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert not of(Right, devices=[("cuda:1",)]).failures
    with pytest.raises(ArgumentError, match="need accelerate: pip install accelerate"):
        of(Right)


def run(folder: Path, module: str, *arguments: str) -> tuple[int, str, str]:
    """How a program ends in a folder, and what it says. A fork could not go backward where torch is built for CUDA."""
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_the_command_line_names_what_fails_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "models.py").write_text(
        "import torch\nclass Model(torch.nn.Sequential):\n    def forward(self, x):\n"
        "        first, second = self\n        return second(first(x)) + first.bias\n"
        "def make():\n    return Model(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.ones(2, 4)\n"
    )
    code, out, err = run(tmp_path, "virtual_gpus.placements", "--devices", "cuda:0,cuda:1", "mine.models:make")
    assert code == 1 and not err, err
    assert "Model: 2 of 2 placements fail (forward, backward)" in out
    assert "forward at mine/models.py:5 in forward: in 2, first with 0 on cuda:0, 1 on cuda:1" in out
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["--devices", "cuda:0", "mine.models:make"]) == 0


FIXTURE = """
import torch

def test_right(virtual_gpu_placements):
    virtual_gpu_placements(lambda: (torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(2, 2)))

class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(2)

def test_mistake(virtual_gpu_placements):
    virtual_gpu_placements(lambda: (Model(2, 2), torch.ones(2, 2)))
"""


def test_the_fixture_fails_a_test_with_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_models.py").write_text(FIXTURE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    _, out, err = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "-p", "virtual_gpus.plugin")
    assert "1 failed, 1 passed" in out, out + err
    assert "Model: 6 of 6 placements fail (forward, backward)" in out
    assert "forward at test_models.py:9 in forward" in out
