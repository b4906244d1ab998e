"""`benchmarks.device_rules` compares virtual GPUs with torch's fake tensors, and tells apart how they differ."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from benchmarks import device_rules
from benchmarks.device_rules import NUMBER, Sample, judged, sort


def sample(call: Callable[..., Any], *given: Tensor) -> Sample:
    leaves, shape = tree_flatten((given[0], given[1:], {}))
    return Sample(getattr(call, "__name__", ""), call, leaves, [*range(len(given))], shape, call(*given))


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
def test_verdicts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(2, 2)
    given = [sample(torch.add, one, one), sample(torch.addcmul, one, one, one), sample(torch.unique, one)]
    monkeypatch.setattr(device_rules, "samples", lambda only, most: given)
    found = {
        str(case): (sort(case, expected, verdict, waits), verdict) for case, expected, verdict, waits in judged("", 1)
    }
    assert found["add(cuda:0, cuda:1)"] == ("agree", "refused add.Tensor")
    assert found[f"add(cuda:0, {NUMBER})"] == ("agree", "cuda:0")
    assert found["add(cuda:0, cuda:0, out cpu)"] == ("agree", "refused add.out")
    assert found[f"add({NUMBER}, {NUMBER}, out cuda:0)"] == ("numbers into a GPU", "refused add.out")
    assert found["add(cuda:0, cuda:0, autocast)"] == ("agree", "cuda:0 ['float32']")
    assert found[f"addcmul({NUMBER}, cuda:0, cuda:0)"] == ("refused alone", "refused addcmul")
    assert found["unique(cuda:0)"][0] == "agree that the host waits"


def test_a_rule_that_is_missed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that moves its second operand by itself stands for an emulator that does not see it."""

    def add(first: Tensor, second: Tensor) -> Tensor:
        return first + (second.to(first.device) if type(second) is not Tensor and hasattr(second, "_gpu") else second)

    monkeypatch.setattr(device_rules, "samples", lambda only, most: [sample(add, torch.ones(2), torch.ones(2))])
    found = {str(one[0]): sort(*one) for one in judged("", 1)}
    assert found["add(cuda:0, cuda:1)"] == "allowed alone"
    assert found["add(cuda:0, cpu)"] == "agree"
