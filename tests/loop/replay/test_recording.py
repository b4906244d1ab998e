"""Recorded steps equal the steps themselves; every mistake that a step can make is planted, and must be refused."""

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from gen.loop.replay.observing import CannotReplay
from gen.loop.replay.recording import Replay, record_in_steps
from virtual_gpus import virtual_gpus


class Memory:
    """The memory that steps of these tests read and write."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.w = torch.randn(4, 8), torch.randn(8, 8)
        self.count = torch.zeros(1, dtype=torch.int64)
        self.cache = torch.zeros(4, 16)
        self.host_count = 0
        self.replaced = torch.zeros(1)
        self.filled = torch.zeros(1, dtype=torch.int64)
        self.addresses = self.filled.data_ptr(), self.count.data_ptr()

    def state(self) -> tuple[Tensor, ...]:
        return self.count, self.cache

    def restore(self) -> None:
        """Set `state` back to its first values."""
        self.count.zero_()
        self.cache.zero_()


@pytest.fixture
def memory() -> Iterator[Memory]:
    with torch.inference_mode():
        yield Memory()


def appends(m: Memory) -> Tensor:
    m.cache.index_copy_(1, m.count, (m.x @ m.w).sum(-1, keepdim=True))
    m.count.add_(1)
    return m.cache.sum(-1)


def unpacks(m: Memory) -> Tensor:
    first, *_, last = m.x.unbind(0)
    left, right = m.x.chunk(2, -1)
    best = m.x.topk(2)
    return torch.cat((left, right), -1).sum() + first + last + best.values.sum() + best.indices.sum()


def writes_with_operators(m: Memory) -> Tensor:
    y = m.x + 1
    y += m.x
    y[0] = 5
    m.cache[:, 3] = y[:, 0]
    out = torch.empty(4, 8)
    torch.mul(y, 2, out=out)
    return out


def attends(m: Memory) -> Tensor:
    x = torch.nn.functional.dropout(m.x, 0.5, training=False)[None, None]
    attended = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=None, is_causal=True)
    return attended.transpose(1, 2).reshape(4, 8)


def selects_with_indices(m: Memory) -> Tensor:
    m.cache[torch.arange(4), m.count.expand(4)] = m.x[:, 0]
    return m.cache[torch.arange(4), m.count.expand(4)]


def selects_with_an_array(m: Memory) -> Tensor:
    return m.x[:, torch.as_tensor(np.array([1, 5, 2]))] + m.x[:, cast(Any, np.array([0, 3, 3]))]


def runs_a_module(m: Memory) -> Tensor:
    torch.manual_seed(1)
    result: Tensor = RUN(m.x)
    return result


class Two(NamedTuple):
    a: Tensor
    b: Tensor


def summed(parts: Any) -> Tensor:
    """A torch function that takes its tensors within an object, as functions of libraries do."""
    tensors: tuple[Tensor, ...] = tuple(parts.values() if isinstance(parts, dict) else parts)
    if has_torch_function(tensors):
        made: Tensor = handle_torch_function(summed, tensors, parts)
        return made
    return tensors[0] + 2 * tensors[1]


def passes_a_dict(m: Memory) -> Tensor:
    return summed({"b": m.x + m.count.add_(1), "a": m.w[:4]}) + summed({"a": m.x, 3: m.x * m.count})


def passes_a_named_tuple(m: Memory) -> Tensor:
    return summed(Two(m.x, m.x + m.count.add_(1)))


RUN = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).requires_grad_(False)


@pytest.mark.parametrize(
    "step",
    [
        *(appends, unpacks, writes_with_operators, attends, selects_with_indices, selects_with_an_array, runs_a_module),
        *(passes_a_dict, passes_a_named_tuple),
    ],
)
def test_a_recording_does_what_the_step_does(memory: Memory, step: Callable[[Memory], Tensor]) -> None:
    replay = checked(lambda: step(memory), *memory.state())
    memory.restore()
    expected = [step(memory).clone() for _ in range(3)]
    after = [tensor.clone() for tensor in memory.state()]
    memory.restore()
    assert all(torch.equal(replay(), value) for value in expected)
    assert all(torch.equal(tensor, value) for tensor, value in zip(memory.state(), after, strict=True))
    addresses = [tensor.data_ptr() for tensor in memory.state()]
    for _ in range(10):
        replay()
    assert addresses == [tensor.data_ptr() for tensor in memory.state()]


def test_questions_of_shape_and_views_of_constants_are_not_calls(memory: Memory) -> None:
    def step() -> Tensor:
        assert memory.x.dim() == 2 and memory.x.dtype == torch.float32
        return memory.x.to("cpu").contiguous() + memory.cache[:, : memory.x.shape[1]]

    assert checked(step).calls == 1


def branches(m: Memory) -> Tensor:
    return m.x * 2 if m.x.sum() > 0 else m.x


def reads_an_item(m: Memory) -> Tensor:
    return torch.mul(m.x, m.count.item())


def reads_a_list(m: Memory) -> Tensor:
    return torch.mul(m.x, m.count.tolist()[0])


def goes_through_numpy(m: Memory) -> Tensor:
    return torch.from_numpy(m.x.numpy() * 2)


def selects_with_a_mask(m: Memory) -> Tensor:
    return m.x[m.x > 0]


def looks_for_what_is_not_zero(m: Memory) -> Tensor:
    return (m.x > 0).nonzero()


def counts_on_the_host(m: Memory) -> Tensor:
    m.host_count += 1
    return m.cache[:, m.host_count]


def counts_in_an_array(m: Memory) -> Tensor:
    m.host_count += 1
    return m.cache[:, cast(Any, np.array([0, m.host_count]))]


def replaces_a_tensor(m: Memory) -> Tensor:
    m.replaced = m.replaced + 1
    return m.replaced * 2


def draws_a_token(m: Memory) -> Tensor:
    return m.x.softmax(-1).multinomial(1)


def draws_noise(m: Memory) -> Tensor:
    return m.x + torch.rand(4, 8)


def drops_out(m: Memory) -> Tensor:
    return torch.nn.functional.dropout(m.x, 0.5)


def hides_an_operation(m: Memory) -> Tensor:
    with torch._C.DisableTorchFunction():
        return m.x * 2


def fills_through_an_address(m: Memory) -> Tensor:
    made = torch.empty(1, dtype=torch.int64)
    ctypes.memset(made.data_ptr(), 1, made.nbytes)
    return made


def fills_through_a_storage(m: Memory) -> Tensor:
    ctypes.memset(m.filled.untyped_storage().data_ptr(), 1, m.filled.nbytes)
    return m.filled + m.count


def fills_through_dlpack(m: Memory) -> Tensor:
    made = torch.zeros(4)
    np.from_dlpack(made)[:] = 1
    return made + 1


def fills_what_it_has_made(m: Memory) -> Tensor:
    made = torch.empty(1, dtype=torch.int64)
    with torch._C.DisableTorchFunction():  # as C++ code sees it
        ctypes.memmove(made.data_ptr(), m.addresses[1], made.nbytes)
    return made + m.count.add_(1)


def fills_what_stays(m: Memory) -> Tensor:
    ctypes.memmove(m.addresses[0], m.addresses[1], m.filled.nbytes)
    return m.filled + m.count.add_(1)


def passes_what_it_has_made_in_an_ordered_dict(m: Memory) -> Tensor:
    return summed(OrderedDict(a=m.x, b=m.x + m.count.add_(1)))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (passes_what_it_has_made_in_an_ordered_dict, "passes a tensor that it has made within an OrderedDict"),
        (fills_through_an_address, "reads on the host: data_ptr"),
        (fills_through_a_storage, "reads on the host: untyped_storage"),
        (fills_through_dlpack, "reads on the host: __dlpack__"),
        (fills_what_it_has_made, "its recording gives other values"),
        (fills_what_stays, "its recording gives other values"),
        (branches, "reads on the host: __bool__"),
        (reads_an_item, "reads on the host: item"),
        (reads_a_list, "reads on the host: tolist"),
        (goes_through_numpy, "reads on the host: numpy"),
        (selects_with_a_mask, "selects by a mask of bool"),
        (looks_for_what_is_not_zero, "reads on the host what it has computed: aten::nonzero"),
        (counts_on_the_host, "does something else at its next call"),
        (counts_in_an_array, "does something else at its next call"),
        (replaces_a_tensor, "does something else at its next call"),
        (draws_a_token, "draws random numbers of torch's: aten::multinomial"),
        (draws_noise, "draws random numbers of torch's: aten::rand"),
        (drops_out, "draws random numbers of torch's: aten::(native_)?dropout"),
        (hides_an_operation, "called where torch functions do not show it"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_reason(
    memory: Memory, step: Callable[[Memory], Tensor], reason: str
) -> None:
    with pytest.raises(CannotReplay, match=reason):
        checked(lambda: step(memory), *memory.state())


def checked(step: Callable[[], Tensor], *changes: Tensor, known: Replay[Any] | None = None) -> Replay[Tensor]:
    """The recording of a step, checked as `record_in_steps` does."""
    *_, made = record_in_steps(step, changes, known)
    assert made is not None
    return made


def test_recording_takes_three_steps_each_of_which_is_a_real_one(memory: Memory) -> None:
    def step() -> Tensor:
        return appends(memory)

    known: Replay[Any] | None = None
    for runs in (3, 1):  # a known step is not run again to compare
        memory.restore()
        made = [*record_in_steps(step, memory.state(), known)]
        found = [tensor.clone() for tensor in memory.state()]
        memory.restore()
        for _ in range(runs):
            step()
        assert all(torch.equal(tensor, value) for tensor, value in zip(memory.state(), found, strict=True))
        known = made.pop()
        assert known is not None and made == [None] * (runs - 1)
        assert torch.equal(known(), memory.cache.sum(-1)) and int(memory.count) == runs + 1


def test_a_step_that_looks_at_its_operations_itself_is_refused(memory: Memory) -> None:
    class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return op(*args, **(kwargs or {}))

    def step() -> Tensor:
        with Looks():  # type: ignore[no-untyped-call]
            for _ in range(6):
                memory.x.add_(1)
        return memory.x + 1

    with pytest.raises(CannotReplay, match="in a mode of torch's"):
        checked(step, *memory.state())


def test_a_step_that_is_not_as_one_that_is_known_is_checked(memory: Memory) -> None:
    known = checked(lambda: memory.x + memory.w[:4], *memory.state())
    with pytest.raises(CannotReplay, match="called where torch functions do not show it"):
        checked(lambda: hides_an_operation(memory), *memory.state(), known=known)
    with pytest.raises(CannotReplay, match="does something else at its next call"):
        checked(lambda: counts_on_the_host(memory), *memory.state(), known=known)


def test_what_is_refused_draws_nothing(memory: Memory) -> None:
    """Otherwise texts would depend on whether a step is recorded."""
    before = torch.get_rng_state()
    with pytest.raises(CannotReplay):
        checked(lambda: draws_noise(memory))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", ["copy_", "to"])
def test_copies_between_devices_are_refused(how: str) -> None:
    """A graph has one device, and a copy from the host reads memory that may be gone when the graph is launched."""
    with virtual_gpus(2), torch.inference_mode():
        here, there = torch.zeros(3, device="cuda:0"), torch.zeros(3, device="cuda:1")

        def step() -> Tensor:
            return here.copy_(there) if how == "copy_" else here.add_(there.to("cuda:0"))

        with pytest.raises(CannotReplay, match=f"copies between devices: (aten::)?{how}"):
            checked(step)


def test_a_copy_to_another_type_is_none_to_another_device(memory: Memory) -> None:
    assert checked(lambda: memory.x.to(torch.float64).to("cpu"))().dtype == torch.float64


@pytest.mark.parametrize("within", [dict, lambda **parts: Two(*parts.values())], ids=["dict", "named tuple"])
def test_what_a_step_makes_and_passes_within_an_object_is_made_anew(within: Callable[..., Any]) -> None:
    """On a GPU no values are compared: the recording must be right without that."""
    with virtual_gpus(1):
        count = torch.zeros(1, dtype=torch.int64, device="cuda")
        replay = checked(lambda: summed(within(a=count.add_(1), b=count * 10)))
        count.zero_()
        assert [replay().item() for _ in range(3)] == [21, 42, 63]


def test_steps_of_virtual_gpus_are_recorded_with_what_they_make(memory: Memory) -> None:
    with virtual_gpus(1):
        count = torch.zeros(1, dtype=torch.int64, device="cuda")
        table = torch.zeros(4, device="cuda")

        def step() -> Tensor:
            table[torch.arange(1, device="cuda") + count] = torch.ones(1, device="cuda")
            return count.add_(1)

        def again() -> None:
            count.zero_()

        replay = checked(step)
        again()
        table.zero_()
        replay()
        replay()
        assert table.tolist() == [1.0, 1.0, 0.0, 0.0]
