"""Moving programs to a device: everything that a graph can hold, tied weights, and what cannot be moved."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

import gen
from gen.models.exported.relocating import relocate, run_on
from tests.models.exported.programs import (
    Bigrams,
    Everything,
    devices_in_code,
    devices_of_tensors,
    ids,
    of_everything,
    program_of,
    written_on,
)
from virtual_gpus import virtual_gpus

cpu = torch.device("cpu")
PROMPT = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return of_everything()


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:7"])
def test_whatever_device_is_written_in_a_program_it_computes_the_models_values(
    program: ExportedProgram, device: str
) -> None:
    expected = Everything()(PROMPT)
    written = written_on(program, device)
    assert devices_in_code(written.graph_module) == {device}
    moved = relocate(written, cpu)
    assert torch.equal(moved(PROMPT), expected)
    assert torch.equal(run_on(moved, cpu, PROMPT), expected)
    with virtual_gpus(2):
        moved = relocate(written, torch.device("cuda:1"))
        result = moved(PROMPT.to("cuda:1"))
        assert torch.equal(result.cpu(), expected)
        assert {str(result.device)} == devices_of_tensors(moved) == devices_in_code(moved) == {"cuda:1"}
    assert devices_in_code(written.graph_module) == {device}


def test_tied_weights_stay_tied(program: ExportedProgram) -> None:
    with virtual_gpus(2):
        moved = relocate(program, torch.device("cuda:1"))
        assert moved.get_parameter("head.weight") is moved.get_parameter("embedding.weight")


def test_what_is_on_the_device_already_is_shared_with_the_program(program: ExportedProgram) -> None:
    moved = relocate(program, cpu)
    assert moved.get_parameter("head.weight").data_ptr() == program.state_dict["head.weight"].data_ptr()


def test_the_device_of_an_autocast_and_of_its_body_are_moved_and_the_program_keeps_its_own() -> None:
    class Cast(Bigrams):
        def forward(self, input_ids: Tensor) -> Tensor:
            logits = super().forward(input_ids)
            with torch.autocast("cpu", enabled=False):
                return logits.float() + torch.arange(300, device=torch.device("cpu"))

    program = program_of(Cast())
    code = [part.code for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    expected = Cast()(PROMPT)
    with virtual_gpus(2):
        moved = relocate(program, torch.device("cuda:1"))
        assert torch.equal(moved(PROMPT.to("cuda:1")).cpu(), expected)
        assert devices_in_code(moved) == {"cuda:1"}
        [cast] = [node for node in moved.graph.nodes if "autocast" in str(node.target)]
        assert cast.args[0] == "cuda"
    assert code == [part.code for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]


def _ramp(x: Tensor, device: torch.device) -> Tensor:
    return x + torch.arange(x.shape[-1], device=device)


@pytest.fixture(scope="module")
def ramp() -> Iterator[Any]:
    """A custom operator that takes a device by position."""
    library: Any = torch.library.Library("gen_tests", "DEF")  # type: ignore[no-untyped-call]
    library.define("ramp(Tensor x, Device device) -> Tensor")
    library.impl("ramp", _ramp, "CompositeExplicitAutograd")
    library.impl("ramp", lambda x, device: torch.empty_like(x), "Meta")
    yield torch.ops.gen_tests.ramp
    library._destroy()


def test_a_device_that_an_operator_takes_by_position_is_moved(ramp: Any) -> None:
    class Ramped(Bigrams):
        def forward(self, input_ids: Tensor) -> Tensor:
            made: Tensor = ramp(super().forward(input_ids), torch.device("cpu"))
            return made

    program, expected = program_of(Ramped()), Ramped()(PROMPT)
    with virtual_gpus(2):
        moved = relocate(program, torch.device("cuda:1"))
        assert torch.equal(moved(PROMPT.to("cuda:1")).cpu(), expected)


def test_a_tensor_on_another_device_is_found_when_the_program_runs() -> None:
    module = torch.fx.symbolic_trace(_Stubborn())
    with virtual_gpus(2):
        device = torch.device("cuda:1")
        with pytest.raises(
            gen.ModelError, match=r"node to \(to\) of the program gives a tensor on cpu, expected cuda:1"
        ):
            run_on(module, device, PROMPT.to(device))


class _Stubborn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).to("cpu")


@pytest.mark.parametrize("without", ["meta", "fake"])
def test_weights_without_values_are_refused(without: str) -> None:
    program = of_everything()
    empty = copy.copy(program)
    mode = FakeTensorMode()
    empty._state_dict = {
        name: nn.Parameter(weight.to("meta") if without == "meta" else mode.from_tensor(weight.detach()))
        for name, weight in program.state_dict.items()
    }
    with pytest.raises(gen.ModelError, match=r"embedding\.weight: a tensor without values"):
        relocate(empty, cpu)


def test_a_node_that_fails_is_named(program: ExportedProgram) -> None:
    with pytest.raises(gen.ModelError, match=r"node embedding \(aten.embedding.default\) of the program fails on cpu"):
        run_on(relocate(program, cpu), cpu, ids(2, 5) + 1000)
