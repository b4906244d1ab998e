"""Every line of the table of device mixes holds, on virtual GPUs and on real ones."""

from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from torch import Tensor

from tests.virtual_gpus.rules.op_table import CASES
from tests.virtual_gpus.rules.op_table.cases import REFUSED, Case
from tests.virtual_gpus.rules.op_table.elementwise import COUNTED, IN_PLACE, ITERATED, STRICT
from virtual_gpus import DeviceMismatchError, no_host_sync, virtual_gpus
from virtual_gpus.rules.op_rule import without_device_check


def _expect_on_cpu(case: Case) -> Any:
    """The operation's result with everything on the CPU: the oracle of values."""
    if any(word in case.name for word in ("cuda", "pinned", "to:", "histc")):
        return None
    return case.run(*(operand.make("cpu") for operand in case.operands))


def _check(case: Case, got: Any, expected_value: Any) -> None:
    if case.expected == "host":
        assert not isinstance(got, Tensor)
        assert got == expected_value
        return
    assert got.device == torch.device(case.expected)
    if isinstance(expected_value, Tensor):
        torch.testing.assert_close(got.cpu(), expected_value.cpu(), equal_nan=True)


def test_virtual_gpus_do_as_the_table_says() -> None:
    """All lines run in one test and in one block, since either takes longer to begin than a line takes to run."""
    wrong = []
    with virtual_gpus(2):
        for case in CASES:
            try:
                _run(case)
            except (Exception, pytest.fail.Exception) as error:
                wrong.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def _run(case: Case) -> None:
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            operands = [operand.make() for operand in case.operands]
            with no_host_sync(count=True) as report:
                if case.expected == REFUSED:
                    with pytest.raises(DeviceMismatchError):
                        case.run(*operands)
                    continue
                got = case.run(*operands)
            assert report.count == case.waits, report
            _check(case, got, _expect_on_cpu(case))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.gpu(devices=case.gpus), id=case.name) for case in CASES]
)
def test_real_gpus_do_as_the_table_says(case: Case) -> None:
    expected_value = None if case.expected == REFUSED else _expect_on_cpu(case)
    operands = [operand.make() for operand in case.operands]
    if case.expected == REFUSED:
        with pytest.raises(RuntimeError):
            case.run(*operands)
        return
    case.run(*operands)  # the first run may load kernels, and that waits too
    operands = [operand.make() for operand in case.operands]
    with no_host_sync(count=True) as report:
        got = case.run(*operands)
    assert (report.count > 0) == (case.waits > 0), report
    _check(case, got, expected_value)


def test_lines_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_elementwise_part_follows_torchs_marks(unchecked: set[str]) -> None:
    def marked(name: str) -> bool:
        return bool({name, f"{name}.Tensor", f"{name}.Tensor_Tensor", f"{name}.self"} & unchecked)

    assert [name for name in (*ITERATED, *COUNTED, *IN_PLACE) if not marked(name)] == []
    assert [name for name in STRICT if f"{name}.Tensor" in unchecked] == []


@pytest.fixture(scope="module")
def unchecked() -> set[str]:
    """The operators that native_functions.yaml marks, read with a parser."""
    import torchgen  # type: ignore[import-untyped]

    path = f"{torchgen.__path__[0]}/packaged/ATen/native/native_functions.yaml"
    with open(path) as file:
        functions = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {f["func"].split("(")[0] for f in functions if f.get("device_check") == "NoCheck"}


def test_device_checks_are_read_as_a_yaml_parser_reads_them(unchecked: set[str]) -> None:
    assert without_device_check() == unchecked
