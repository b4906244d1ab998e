"""Packed weights as tensors: whatever changes a plain tensor's numbers raises here, and whatever reads them works."""

import copy
import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import gen
from gen.models.transformers.packed_linear import PackedEmbedding, PackedLinear, pack_
from gen.models.transformers.packed_weight import PackedWeight, ReadOnly
from tests.models.transformers.test_cpu_layouts import needs

pytestmark = pytest.mark.usefixtures("small_layers")

WRITES: dict[str, Callable[[Any], object]] = {
    "mul_": lambda w: w.mul_(2),
    "+=": lambda w: w.__iadd__(1),
    "row": lambda w: w.__setitem__(3, 0),
    "mask": lambda w: w.__setitem__(w > 0, 0),
    "copy_": lambda w: w.copy_(torch.zeros(())),
    "zero_ of torch": lambda w: torch.zero_(w),
    "relu_": lambda w: nn.functional.relu(w, inplace=True),
    "init": lambda w: nn.init.normal_(w),
    "random_": lambda w: w.random_(),
    "index_fill_": lambda w: w.index_fill_(0, torch.tensor([1]), 0.0),
    "out=": lambda w: torch.mul(torch.ones(()), 2, out=w),
    "foreach": lambda w: torch._foreach_mul_([torch.zeros(2), w], 2.0),
    "row of a view": lambda w: w.view(-1)[::7].zero_(),
    "transposed": lambda w: w.t().mul_(2),
    "unbound": lambda w: w.unbind()[0].zero_(),
    "split": lambda w: w.split(10)[1].zero_(),
    "expanded": lambda w: w.expand(2, *w.shape)[0].zero_(),
    "strided": lambda w: w.as_strided((2, 2), (1, 1)).zero_(),
    "memory of a view": lambda w: w[3].numpy(),
    "numpy": lambda w: w.numpy(),
    "asarray": lambda w: np.asarray(w),
    "dlpack": lambda w: torch.utils.dlpack.from_dlpack(w),
    "storage": lambda w: w.untyped_storage().fill_(0),
    "typed storage": lambda w: w.storage(),
    "address": lambda w: w.data_ptr(),
    "shared": lambda w: w.share_memory_(),
    "data": lambda w: setattr(w, "data", torch.zeros(70, 300)),
    "data of another": lambda w: setattr(w, "data", copy.copy(w)),
    "vector": lambda w: nn.utils.vector_to_parameters(torch.zeros(70 * 300), [w]),
    "set_": lambda w: w.set_(w.new_zeros(3)),
    "resize_": lambda w: w.resize_(3),
    "t_": lambda w: w.t_(),
    "apply_": lambda w: w.apply_(lambda one: 0.0),
    "map_": lambda w: w.map_(torch.zeros(70, 300), lambda one, two: two),
}
HOLDERS: dict[str, Callable[[Any], Tensor]] = {
    "weight": lambda model: model[0].weight,
    "data": lambda model: model[0].weight.data,
    "detached": lambda model: model[1].weight.detach(),
    "parameters": lambda model: next(model.parameters()),
    "state_dict": lambda model: model.state_dict()["1.weight"],
}
OF_COPIES = {"storage", "typed storage", "address"}  # a state_dict has memory of its own, from which it is saved


@pytest.fixture(params=["linear", "tied", "half"])
def model(request: pytest.FixtureRequest) -> nn.Sequential:
    """Layers, packed; [1] is one that may be an embedding with the weight of [0]."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(300, 70), nn.Linear(300, 70))
    made[1].weight = made[0].weight
    if request.param != "linear":
        made[1] = nn.Embedding(70, 300)
        made[1].weight = made[0].weight
    dtype = torch.float16 if request.param == "half" else torch.float32
    needs(dtype)
    made = made.to(dtype).eval().requires_grad_(False)
    assert pack_(made) == 1
    return made


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("holder", HOLDERS)
def test_no_write_goes_unnoticed(model: Any, holder: str, mode: Callable[[], Any]) -> None:
    before, states = model[0].weight.clone(), torch.randn(3, 300)
    with torch.no_grad():
        expected = model[0](states)
    for name, write in WRITES.items():
        if holder == "state_dict" and name in OF_COPIES:
            continue
        with mode(), pytest.raises(gen.ModelError, match=r"cannot be changed .*pack=False.*from_transformers"):
            write(HOLDERS[holder](model))
    assert torch.equal(model[0].weight, before)
    with torch.no_grad():
        assert torch.equal(model[0](states), expected)


def test_with_gradients_torch_refuses_too(model: Any) -> None:
    weight = model[0].weight.requires_grad_(True)
    before = weight.detach().clone()
    writes: list[Callable[[], Any]] = [
        lambda: weight.mul_(2),
        lambda: weight.__setitem__(3, 0),
        lambda: weight.t().zero_(),
    ]
    for write in writes:
        with pytest.raises(RuntimeError, match="leaf Variable"):
            write()
    assert torch.equal(weight, before)


def test_numbers_can_be_read(model: Any) -> None:
    weight: Any = model[0].weight
    assert isinstance(weight, nn.Parameter) and isinstance(weight, PackedWeight)
    plain = weight.clone()
    assert type(plain) is Tensor and plain.shape == (70, 300) and plain.dtype == weight.dtype
    plain.mul_(2)  # a copy is its own
    assert torch.equal(2 * weight, plain)
    assert torch.equal(weight[3].clone(), weight.clone()[3]) and weight[3, 5].item() == weight.tolist()[3][5]
    assert torch.equal(weight.double(), weight.clone().double())
    assert (weight.device.type, len(weight), weight.numel(), weight.is_contiguous()) == ("cpu", 70, 21_000, True)
    assert "PackedWeight(tensor(" in repr(weight)
    into = torch.zeros(70, 300, dtype=weight.dtype)
    into.copy_(weight)
    assert torch.equal(into, weight)


def test_products_with_the_weight_itself_are_those_of_the_layer(model: Any) -> None:
    """As modules compute that read the weight of another one."""
    states = torch.randn(3, 300)
    weight = model[0].weight
    with torch.no_grad():
        found = nn.functional.linear(states, weight.to(torch.float32), model[0].bias)
        torch.testing.assert_close(found, model[0](states), rtol=1e-4, atol=1e-5)


def test_a_saved_state_is_plain(model: Any) -> None:
    state = model.state_dict()
    assert type(state["0.weight"]) is ReadOnly
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    plain = torch.load(file)
    assert all(type(one) is Tensor and torch.equal(one, state[name]) for name, one in plain.items())
    read = safetensors.torch.load(safetensors.torch.save({"w": state["0.weight"]}))
    assert torch.equal(read["w"], plain["0.weight"])
    ours = copy.deepcopy(state)
    ours["0.weight"].zero_()  # a copy of a state is its own
    assert model[0].weight.abs().sum() > 0


def test_another_state_is_loaded_into_plain_weights(model: Any) -> None:
    state = {name: 2 * one for name, one in model.state_dict().items()}
    for assign in (False, True):
        loaded = copy.deepcopy(model)
        loaded.load_state_dict(state, assign=assign)
        assert all(torch.equal(one, state[name]) for name, one in loaded.state_dict().items())
        assert not any(isinstance(one, PackedWeight) for one in loaded.parameters())
    assert isinstance(model[0].weight, PackedWeight)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_a_model_is_packed_and_goes_its_own_way(how: str, model: Any) -> None:
    file, states = io.BytesIO(), torch.randn(3, 300)
    if how == "deepcopy":
        made = copy.deepcopy(model)
    else:
        torch.save(model, file)
        file.seek(0)
        made = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(made[0](states), model[0](states))
    assert isinstance(made[0], PackedLinear) and isinstance(made[1], PackedLinear | PackedEmbedding)
    assert isinstance(made[0].weight, PackedWeight) and made[0].weight is made[1].weight
    before = model[0].weight.clone()
    made[0].weight.unpack_()
    made[0].weight.data.zero_()
    assert not made[1].weight.any() and torch.equal(model[0].weight, before) and torch.equal(model[1].weight, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_type_unpacks_weights_which_stay_tied(model: Any, dtype: torch.dtype) -> None:
    before, held = model[0].weight.clone(), model[0].weight
    model.to(torch.float32)
    assert isinstance(model[0].weight, PackedWeight)  # it computes in float32 already
    model.to(dtype)
    kind: type = type(model[0].weight)
    assert kind is nn.Parameter and model[0].weight is model[1].weight and model[0].weight is held
    assert {one.dtype for one in model.parameters()} == {dtype}
    assert torch.equal(model[0].weight, before.to(dtype))


def test_gradients_unpack_weights_for_an_optimiser_made_before(model: Any) -> None:
    model.requires_grad_(True)
    before, states = model[0].weight.detach().clone(), torch.randn(3, 300)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    model[0](states).sum().backward()
    optimiser.step()
    torch.testing.assert_close(model[0].weight.detach(), before.float() - states.sum(0), rtol=1e-5, atol=1e-5)
    assert model[1].weight is model[0].weight


def test_gradients_of_inputs_are_those_of_the_plain_layer(model: Any) -> None:
    states = torch.randn(3, 300, requires_grad=True)
    expected = model[0].weight.float().sum(0).expand(3, -1)
    model[0](states).sum().backward()
    torch.testing.assert_close(states.grad, expected)


def test_a_weight_that_torch_holds_is_not_unpacked_in_silence(model: Any) -> None:
    kept = weakref.ref(model[0].weight)
    with pytest.raises(gen.ModelError, match="the weights are in use"):
        model.half()
    assert kept() is model[0].weight


def test_a_parameter_put_in_place_of_a_packed_one_is_computed_with(model: Any) -> None:
    states, new = torch.randn(3, 300), torch.randn(70, 300)
    puts: list[Callable[[], Any]] = [
        lambda: setattr(model[0], "weight", nn.Parameter(new)),
        lambda: model[0]._parameters.update(weight=nn.Parameter(new)),
    ]
    for put in puts:
        put()
        with torch.no_grad():
            expected = nn.functional.linear(states, new, model[0].bias)
            torch.testing.assert_close(model[0](states), expected)


def test_under_autocast_it_computes_as_torch_does(model: Any) -> None:
    states = torch.randn(3, 300)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = model[0](states)
        expected = nn.functional.linear(states, model[0].weight.clone(), model[0].bias)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
