"""Devices that a call names, in every spelling and every way of calling: the result is there, with a CPU's values.

The oracle is torch's rule: a device that is named counts; without one a new tensor is where its model is, and a moved
tensor stays. A bare "cuda" or an index of a thread's current device is read at the call.
"""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import (
    Tensor,
    as_tensor,
    empty_like,
    full_like,
    ones_like,
    rand_like,
    randint_like,
    randn_like,
    tensor,
    zeros_like,
)

from virtual_gpus import DeviceMismatchError, HostSyncError, no_host_sync

pytestmark = pytest.mark.usefixtures("gen_virtual_gpus")
CPU, GPU0, GPU1 = (torch.device(name) for name in ("cpu", "cuda:0", "cuda:1"))
SPELLINGS: list[tuple[Any, torch.device | None]] = [  # and the device that each means
    ("cpu", CPU), (CPU, CPU), ("cuda", GPU0), ("cuda:0", GPU0), ("cuda:1", GPU1), (GPU0, GPU0), (0, GPU0), (1, GPU1),
    (None, None), ("meta", torch.device("meta")),
]  # fmt: skip
aten = torch.ops.aten
new_zeros, new_ones, new_full = Tensor.new_zeros, Tensor.new_ones, Tensor.new_full
new_empty, new_empty_strided = Tensor.new_empty, Tensor.new_empty_strided
to, cpu, cuda, early_rand = Tensor.to, Tensor.cpu, Tensor.cuda, torch.rand

# each takes a tensor and keyword arguments, and was looked up before there were virtual GPUs
LIKE: dict[str, Callable[..., Tensor]] = {
    "zeros_like": zeros_like,
    "ones_like": ones_like,
    "empty_like": empty_like,
    "full_like": lambda x, **more: full_like(x, 3, **more),
    "rand_like": rand_like,
    "randn_like": randn_like,
    "randint_like": lambda x, **more: randint_like(x, 9, **more),
    "new_zeros": lambda x, **more: new_zeros(x, (2, 3), **more),
    "new_ones": lambda x, **more: new_ones(x, (2, 3), **more),
    "new_full": lambda x, **more: new_full(x, (2, 3), 3, **more),
    "new_empty": lambda x, **more: new_empty(x, (2, 3), **more),
    "new_empty_strided": lambda x, **more: new_empty_strided(x, (2, 3), (3, 1), **more),
}
LIKE |= {
    "torch.zeros_like": lambda x, **more: torch.zeros_like(x, **more),
    "torch.full_like": lambda x, **more: torch.full_like(x, 3, **more),
    "torch.rand_like": lambda x, **more: torch.rand_like(x, **more),
    "x.new_zeros": lambda x, **more: x.new_zeros((2, 3), **more),
    "x.new_tensor": lambda x, **more: x.new_tensor([1.0, 2.0], **more),
    "aten.zeros_like": aten.zeros_like,
    "aten.zeros_like.default": aten.zeros_like.default,
    "aten.full_like.default": lambda x, **more: aten.full_like.default(x, 3, **more),
    "aten.rand_like.default": aten.rand_like.default,
    "aten.randint_like": lambda x, **more: aten.randint_like(x, 9, **more),
    "aten.new_zeros.default": lambda x, **more: aten.new_zeros.default(x, [2, 3], **more),
    "aten.new_empty_strided.default": lambda x, **more: aten.new_empty_strided.default(x, [2, 3], [3, 1], **more),
}
MOVES: dict[str, Callable[..., Tensor]] = {
    "to": lambda x, device: to(x, device),
    "to(device=)": lambda x, device: to(x, device=device),
    "x.to": lambda x, device: x.to(device),
    "x.to(device, dtype)": lambda x, device: x.to(device, torch.float32),
    "aten.to.device": lambda x, device: aten.to.device(x, device, torch.float32),
    "aten.to": lambda x, device: aten.to(x, device, torch.float32),
    "aten.to.dtype_layout": lambda x, device: aten.to.dtype_layout(x, device=device),
    "aten._to_copy": lambda x, device: aten._to_copy(x, device=device),
    "aten._to_copy.default": lambda x, device: aten._to_copy.default(x, device=device),
    "as_tensor": lambda x, device: torch.as_tensor(x, device=device),
    "prims.device_put": lambda x, device: torch.ops.prims.device_put(x, device),
    "prims.device_put.default": lambda x, device: torch.ops.prims.device_put.default(x, device),
}
PLAIN: dict[str, Callable[..., Tensor]] = {
    name: partial(getattr(torch, name), *args)
    for name, args in {
        "zeros": (2, 3), "ones": (2, 3), "empty": (2, 3), "full": ((2, 3), 3), "arange": (5,), "eye": (3,),
        "rand": (2, 3), "randn": (2, 3), "randint": (9, (2, 3)), "randperm": (7,), "normal": (0.0, 1.0, (2, 3)),
        "linspace": (0, 1, 5), "logspace": (0, 1, 5), "scalar_tensor": (3.0,), "hann_window": (5,),
        "kaiser_window": (5,), "empty_strided": ((2, 3), (3, 1)), "empty_permuted": ((2, 3), (1, 0)),
        "tril_indices": (3, 3), "triu_indices": (3, 3), "_efficientzerotensor": ((2, 3),),
    }.items()
}  # fmt: skip
PLAIN |= {
    f"torch.{name}": partial(lambda name, **more: getattr(torch, name)(2, 3, **more), name)
    for name in ("zeros", "rand")
}
PLAIN |= {
    "aten.zeros": partial(aten.zeros, [2, 3]),
    "aten.zeros.default": partial(aten.zeros.default, [2, 3], pin_memory=False),
    "aten.rand.default": partial(aten.rand.default, [2, 3]),
    "aten.arange.default": partial(aten.arange.default, 5),
    "aten.empty.memory_format": partial(aten.empty.memory_format, [2, 3]),
    "fft.fftfreq": partial(torch.fft.fftfreq, 4),
}
COPYING: dict[str, Callable[..., Tensor]] = {  # also looked up before
    "tensor": lambda **more: tensor([1.0], **more),
    "as_tensor": lambda **more: as_tensor([1.0], **more),
    "signal.windows.hann": partial(torch.signal.windows.hann, 4),
}
DRAWN = "rand", "randn", "randint", "randperm", "normal", "aten.rand.default"
WITHOUT_VALUES = "empty", "permuted", "strided"


def model_on(place: torch.device) -> Tensor:
    return torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).to(place)


def takes(name: str, device: Any, place: torch.device = CPU) -> bool:
    """Whether torch takes this spelling: operators take devices alone, and no indices; and a torch that was built for
    the CPU knows no current GPU in functions from before the block, unless they get a tensor of a virtual one."""
    known = name.startswith(("torch.", "x.", "as_tensor")) or place != CPU
    if name.startswith("to") and not known:
        return device not in ("cuda", 0, 1)
    return not isinstance(device, int) or (known and not name.startswith(("aten.", "prims.")))


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("name", PLAIN)
def test_a_factory_makes_its_tensor_on_the_device_that_is_named(name: str) -> None:
    for device, expected in SPELLINGS:
        if takes(name, device):
            check_plain(name, device, expected)


def check_plain(name: str, device: Any, expected: torch.device | None) -> None:
    made = PLAIN[name](device=device)
    assert made.device == (expected or CPU)
    if made.device.type != "meta":
        same = made.cpu() + made.cpu()
        torch.testing.assert_close((made + made).cpu(), same, equal_nan=True)
        with no_host_sync():
            assert made.add(PLAIN[name](device=made.device)).device == made.device
        if not any(word in name for word in (*WITHOUT_VALUES, "rand", "normal")):
            torch.testing.assert_close(made.cpu(), PLAIN[name](device="cpu"))


@pytest.mark.parametrize("name", COPYING)
def test_numbers_are_copied_to_the_device_that_is_named(name: str) -> None:
    for device, expected in (("cuda:1", GPU1), ("cuda", GPU0)):
        made = COPYING[name](device=device)
        assert made.device == expected
        torch.testing.assert_close(made.cpu(), COPYING[name](device="cpu"))


@pytest.mark.parametrize("name", LIKE)
def test_a_tensor_like_another_is_on_the_device_that_is_named_or_with_that_one(name: str) -> None:
    for place in (CPU, GPU0, GPU1):
        for device, expected in SPELLINGS:
            if takes(name, device, place):
                check_like(name, place, device, expected or place)


def check_like(name: str, place: torch.device, device: Any, expected: torch.device) -> None:
    model = model_on(place)
    made = LIKE[name](model, device=device)
    assert made.device == expected and made.dtype == torch.float32
    assert model.device == place
    if made.device.type == "meta":
        return
    if not any(word in name for word in (*WITHOUT_VALUES, "rand")):
        torch.testing.assert_close(made.cpu(), LIKE[name](model_on(CPU), device="cpu"))
    with no_host_sync():
        made.add_(1)
    if made.device != place and made.shape == model.shape:
        with pytest.raises(DeviceMismatchError):
            made + model


@pytest.mark.parametrize("name", MOVES)
def test_a_moved_tensor_is_on_the_device_that_is_named_and_the_host_waits_for_copies(name: str) -> None:
    for place in (CPU, GPU0, GPU1):
        for device, expected in SPELLINGS:
            if expected and takes(name, device, place):
                check_move(name, place, device, expected)


def check_move(name: str, place: torch.device, device: Any, expected: torch.device) -> None:
    model = model_on(place)
    with no_host_sync(count=True) as report:
        moved = MOVES[name](model, device)
    assert moved.device == expected
    crosses = {place.type, moved.device.type} == {"cpu", "cuda"}
    assert report.count == crosses
    if moved.device.type != "meta":
        assert moved.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_methods_from_before_the_block_that_move() -> None:
    x = model_on(GPU1)
    with no_host_sync(count=True) as report:
        assert cpu(x).device == CPU and type(cpu(x)) is Tensor
        assert cuda(x).device == GPU0 and cuda(x, 0).device == GPU0
        assert to(x, model_on(CPU)).device == CPU
    assert report.count == 3
    with no_host_sync(), pytest.raises(HostSyncError):
        cpu(x)


@pytest.mark.parametrize(
    "name", ["zeros_like", "rand_like", "torch.zeros_like", "new_zeros", "aten.zeros_like.default"]
)
def test_the_current_device_and_contexts_count_where_no_index_is_named(name: str) -> None:
    torch.cuda.set_device(1)
    assert LIKE[name](model_on(GPU0), device="cuda").device == GPU1
    assert LIKE[name](model_on(CPU), device="cuda").device == GPU1
    with torch.device("cuda:0"):
        assert LIKE[name](model_on(GPU1)).device == GPU1
        assert LIKE[name](model_on(CPU)).device == CPU or not name.startswith("aten")
        assert LIKE[name](model_on(GPU1), device="cpu").device == CPU


@pytest.mark.parametrize("name", ["zeros", "rand", "torch.zeros", "arange", "full", "randperm"])
def test_plain_factories_follow_contexts_and_the_default_device(name: str) -> None:
    for context in ("cuda:1", 1, GPU1):
        with torch.device(context):
            assert PLAIN[name]().device == GPU1
            assert PLAIN[name](device="cpu").device == CPU
            assert PLAIN[name](device="cuda").device == GPU0
    torch.set_default_device("cuda:1")
    assert PLAIN[name]().device == GPU1
    assert PLAIN[name](device="cpu").device == CPU


class Program(torch.nn.Module):
    """A model whose factories and moves name the CPU, as one that is exported on a CPU has them."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


BAKED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "zeros_like": (lambda x: torch.zeros_like(x, device="cpu") + x, "mismatch"),
    "full_like": (lambda x: torch.full_like(x, 2.0, device="cpu") * x, "mismatch"),
    "new_ones": (lambda x: x.new_ones((2, 3), device="cpu") + x, "mismatch"),
    "zeros": (lambda x: torch.zeros(2, 3, device="cpu") + x, "mismatch"),
    "arange": (lambda x: torch.arange(3, device="cpu") + x, "mismatch"),
    "the result": (lambda x: torch.zeros_like(x, device="cpu"), "cpu"),
    "without a device": (lambda x: torch.zeros(2, 3) + x, "mismatch"),
    "nothing": (lambda x: x + 1, "cuda:1"),
}


@pytest.mark.parametrize("name", BAKED)
def test_an_exported_program_has_the_devices_that_its_export_fixed(name: str) -> None:
    call, found = BAKED[name]
    program = EXPORTED[name]
    x = model_on(GPU1)
    if found == "mismatch":
        with pytest.raises(DeviceMismatchError):
            program(x)
    else:
        assert str(program(x).device) == found
    torch.testing.assert_close(program(model_on(CPU)), call(model_on(CPU)))


def test_an_exported_move_to_the_cpu_is_a_host_sync_after_a_check_that_fails_as_on_cuda() -> None:
    x = model_on(GPU1)
    with pytest.raises(RuntimeError, match="Tensor device mismatch! Expected: cpu, Got: cuda:1"):
        EXPORTED_MOVES(x)
    unchecked = EXPORTED_WITHOUT_CHECKS
    with no_host_sync(count=True) as report:
        moved = unchecked(x)
    assert moved.device == CPU and report.count == 1
    assert moved.tolist() == [[2, 4, 6], [8, 10, 12]]


def test_an_exported_check_of_a_device_is_torchs() -> None:
    check = aten._assert_tensor_metadata.default
    check(model_on(GPU1), device=GPU1)
    check(model_on(GPU1), None, None, torch.float32, device=GPU1)
    check(model_on(CPU), device=CPU)
    for wrong in (CPU, GPU0):
        with pytest.raises(RuntimeError, match="Tensor device mismatch!"):
            check(model_on(GPU1), device=wrong)


class _Doubled(torch.autograd.Function):
    """Twice its input, by way of the CPU, there and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert zeros_like(x, device="cpu").device == CPU
        return x.to("cpu").mul(2).to(x.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        assert zeros_like(gradient, device="cpu").device == CPU
        assert new_zeros(gradient, 2, device=CPU).device == CPU
        assert aten.zeros_like.default(gradient, device=CPU).device == CPU
        assert torch.zeros(2).device == CPU
        return to(gradient, "cpu").mul(2).to(gradient.device)


def test_functions_of_autograd_name_devices() -> None:
    x = model_on(GPU1).requires_grad_()
    with no_host_sync(count=True) as report:
        y = _Doubled.apply(x)  # type: ignore[no-untyped-call]
        y.sum().backward()
    assert y.device == GPU1 and x.grad is not None and x.grad.device == GPU1
    assert report.count == 4
    assert x.grad.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_gradients_go_back_over_moves_from_before_the_block() -> None:
    for move in (lambda x: to(x, "cpu"), cpu, lambda x: aten.to.device(x, CPU, torch.float32)):
        x = model_on(GPU1).requires_grad_()
        moved = move(x)
        assert moved.device == CPU
        moved.sum().backward()
        assert x.grad is not None and x.grad.device == GPU1
    x = model_on(CPU).requires_grad_()
    to(x, "cuda:1").sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and x.grad.device == CPU


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "functional_call"])
def test_transforms_of_torch_func_name_devices(transform: str) -> None:
    seen: list[torch.device] = []

    def function(x: Tensor) -> Tensor:
        for made in (torch.zeros_like(x, device="cpu"), x.new_zeros(2, device="cpu"), torch.zeros(2, device="cpu")):
            seen.append(made.device)
        for made in (torch.zeros_like(x), torch.ones(2, device=x.device), torch.zeros_like(x, device="cuda:1")):
            seen.append(made.device)
        return (x * torch.ones_like(x)).sum()

    x = model_on(GPU1)
    if transform == "grad":
        made = torch.func.grad(function)(x)
    elif transform == "vmap":
        made = torch.func.vmap(function)(x)
    elif transform == "jvp":
        made = torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]
    else:
        made = torch.func.functional_call(Program(function), {}, (x,))
    assert made.device == GPU1
    assert seen == [CPU] * 3 + [GPU1] * 3


def test_a_generator_of_another_kind_is_refused_everywhere() -> None:
    host, device = torch.Generator().manual_seed(0), torch.Generator("cuda:1").manual_seed(0)
    for make in (torch.rand, torch.randn, partial(torch.normal, 0.0, 1.0), early_rand):
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            make((2, 3), device="cuda:1", generator=host)
        assert make((2, 3), device="cuda:1", generator=device).device == GPU1
    with pytest.raises(DeviceMismatchError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.multinomial(torch.ones(3, device="cuda:1"), 1, generator=host)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.rand((2, 3), device="cpu", generator=device),
        lambda: torch.rand((2, 3), generator=device),
        lambda: torch.ones(3).exponential_(generator=device),
    ]
    for call in calls:
        with pytest.raises(DeviceMismatchError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
            call()


def test_numbers_drawn_on_a_gpu_are_those_of_its_seed_and_the_cpus_generator_stays() -> None:
    torch.manual_seed(7)
    expected = {name: PLAIN[name](device="cpu") for name in DRAWN}
    for name, values in expected.items():
        state = torch.get_rng_state()
        torch.cuda.manual_seed(7)
        first = PLAIN[name](device="cuda:0")
        torch.cuda.manual_seed(7)
        assert torch.equal(PLAIN[name](device="cuda:0"), first) and first.shape == values.shape
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_layers_that_drop_out_draw_from_their_gpu_in_every_mode(mode: Any) -> None:
    torch.manual_seed(0)
    ones = torch.ones(3, 2, 4, device="cuda:0")
    layers = [torch.nn.LSTM(4, 4, 2, dropout=0.5), torch.nn.TransformerEncoderLayer(4, 1, 8, 0.5)]
    for layer in [*(layer.to("cuda:0") for layer in layers), torch.nn.Dropout()]:
        with mode():
            state, drawn = torch.get_rng_state(), []
            for seed in (1, 1, 2):
                torch.cuda.manual_seed(seed)
                out = layer(ones)
                drawn.append(out[0] if isinstance(out, tuple) else out)
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
        assert torch.equal(torch.get_rng_state(), state)


def test_copies_of_a_generator_draw_what_it_would_draw() -> None:
    own = torch.Generator("cuda:1").manual_seed(3)
    twins = [own.clone_state(), copy.deepcopy(own), pickle.loads(pickle.dumps(own))]
    drawn = [torch.rand(3, device="cuda:1", generator=one) for one in (own, *twins)]
    assert all(torch.equal(drawn[0], one) for one in drawn[1:])
    torch.cuda.random.manual_seed_all(5)
    assert torch.cuda.random.initial_seed() == 5


EXPORTED = {name: torch.export.export(Program(call), (torch.ones(2, 3),)).module() for name, (call, _) in BAKED.items()}
EXPORTED_MOVES, EXPORTED_WITHOUT_CHECKS = (
    torch.export.export(Program(lambda x: x.to("cpu") * 2), (torch.ones(2, 3),)).module() for _ in range(2)
)
for node in [*EXPORTED_WITHOUT_CHECKS.graph.nodes]:
    if node.target is aten._assert_tensor_metadata.default:
        EXPORTED_WITHOUT_CHECKS.graph.erase_node(node)
EXPORTED_WITHOUT_CHECKS.recompile()
