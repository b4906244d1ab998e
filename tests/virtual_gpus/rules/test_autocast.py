"""Autocast for "cuda" on virtual GPUs changes dtypes as on CUDA."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from virtual_gpus import no_host_sync, virtual_gpus
from virtual_gpus.rules import autocast

FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16
# What autocast's header says about each function: its dtype for float32 and for half precision operands.
RULES: dict[str, tuple[Any, torch.dtype, torch.dtype]] = {
    "matmul": (lambda x: x @ x, BFLOAT, BFLOAT),
    "linear": (lambda x: functional.linear(x, x), BFLOAT, BFLOAT),
    "bmm": (lambda x: torch.bmm(x[None], x[None]), BFLOAT, BFLOAT),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, x), BFLOAT, BFLOAT),
    "conv": (lambda x: functional.conv1d(x[None], x[:, :, None]), BFLOAT, BFLOAT),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), BFLOAT, BFLOAT),
    "exp": (torch.exp, FLOAT, FLOAT),
    "softmax": (lambda x: x.softmax(-1), FLOAT, FLOAT),
    "log_softmax": (lambda x: functional.log_softmax(x, -1), FLOAT, FLOAT),
    "layer norm": (lambda x: functional.layer_norm(x, (2,)), FLOAT, FLOAT),
    "sum": (torch.sum, FLOAT, FLOAT),
    "cumsum": (lambda x: x.cumsum(0), FLOAT, FLOAT),
    "pow": (lambda x: x**2, FLOAT, FLOAT),
    "mse": (lambda x: functional.mse_loss(x, x), FLOAT, FLOAT),
    "norm": (lambda x: x.norm(), FLOAT, FLOAT),
    "add": (lambda x: x + x, FLOAT, BFLOAT),
    "relu": (torch.relu, FLOAT, BFLOAT),
    "gelu": (functional.gelu, FLOAT, BFLOAT),
    "addcmul": (lambda x: torch.addcmul(x, x, x), FLOAT, BFLOAT),
    "mean": (torch.mean, FLOAT, BFLOAT),
}


@pytest.mark.parametrize("name", RULES)
def test_operators_compute_in_the_precision_of_cuda(name: str) -> None:
    run, of_float, of_half = RULES[name]
    with virtual_gpus(2):
        numbers = torch.ones(2, 2, device="cuda:1")
        with torch.autocast("cuda", dtype=BFLOAT), no_host_sync():
            assert run(numbers).dtype == of_float
            assert run(numbers.bfloat16()).dtype == of_half
            assert run(numbers).device == numbers.device
        assert run(numbers).dtype == FLOAT


def test_autocast_leaves_the_cpu_and_float64_alone() -> None:
    with virtual_gpus(1), torch.autocast("cuda", dtype=HALF):
        host, double = torch.ones(2, 2), torch.ones(2, 2, device="cuda", dtype=torch.float64)
        assert (host @ host).dtype == FLOAT
        assert (double @ double).dtype == torch.float64
        with torch.autocast("cuda", enabled=False):
            single = torch.ones(2, 2, device="cuda")
            assert (single @ single).dtype == FLOAT
        with torch.autocast("cpu", dtype=BFLOAT):
            assert (host @ host).dtype == BFLOAT
            assert host.softmax(-1).dtype == FLOAT


def test_a_training_step_in_mixed_precision_keeps_single_gradients() -> None:
    with virtual_gpus(2):
        layer = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)).to("cuda:1")
        with torch.autocast("cuda", dtype=BFLOAT):
            scores = layer(torch.ones(4, 3, device="cuda:1"))
            assert scores.dtype == BFLOAT
            loss = functional.cross_entropy(scores, torch.zeros(4, dtype=torch.long, device="cuda:1"))
            assert loss.dtype == FLOAT
        loss.backward()  # type: ignore[no-untyped-call]
        assert {(p.grad.dtype, p.grad.device.index) for p in layer.parameters() if p.grad is not None} == {(FLOAT, 1)}


def test_a_half_precision_layer_takes_single_precision() -> None:
    with virtual_gpus(1), torch.autocast("cuda", dtype=BFLOAT):
        layer = nn.Linear(2, 2, device="cuda", dtype=BFLOAT)
        assert layer(torch.ones(2, 2, device="cuda")).dtype == BFLOAT


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_give_the_precision_of_cudnn(kind: Any) -> None:
    with virtual_gpus(1), torch.autocast("cuda", dtype=BFLOAT):
        out, states = kind(2, 2, device="cuda")(torch.ones(3, 1, 2, device="cuda"))
        assert {one.dtype for one in (out, *states)} == {BFLOAT}


def test_what_autocast_refuses_is_refused() -> None:
    with virtual_gpus(1), torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        half = torch.full((2,), 0.5, device="cuda")
        functional.binary_cross_entropy(half, half)


def test_the_lists_are_those_of_torchs_header() -> None:
    header = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()
    for name, ours in (
        ("LOWER_PRECISION_FP", autocast.LOWER),
        ("FP32", autocast.FLOAT32),
        ("FP32_SET_OPT_DTYPE", autocast.FLOAT32_RESULT),
        ("PROMOTE", autocast.WIDEST),
    ):
        found = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n", header, re.DOTALL)
        assert found
        listed = [".".join(filter(None, parts)) for parts in re.findall(r"_\((\w+)(?:, (\w+))?\)", found[1])]
        assert set(ours) == set(listed)
