"""Operators over a TensorIterator, and operators that compute in the same way but are checked like all others.

Sources: native_functions.yaml, where `device_check: NoCheck` marks the former; TensorIterator.cpp (compute_types),
which allows one 0-dim CPU tensor beside a GPU's; cuda/PointwiseOpsKernel.cu, which takes it only as `tensor2`.
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.virtual_gpus.rules.op_table.cases import GPU0, GPU1, HOST, REFUSED, Case, counts, floats

ITERATED: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "fmod": torch.fmod,
    "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "eq": torch.eq,
    "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "atan2": torch.atan2,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "hypot": torch.hypot, "copysign": torch.copysign, "floor_divide": torch.floor_divide, "remainder": torch.remainder,
    "xlogy": torch.xlogy, "heaviside": torch.heaviside, "special_zeta": torch.special.zeta, "rsub": torch.rsub,
    "special_xlog1py": torch.special.xlog1py,
}  # fmt: skip
COUNTED: dict[str, Callable[..., Any]] = {
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "bitwise_left_shift": torch.bitwise_left_shift, "bitwise_right_shift": torch.bitwise_right_shift,
}  # fmt: skip
IN_PLACE = (
    "add_", "sub_", "mul_", "div_", "pow_", "fmod_", "atan2_", "hypot_", "copysign_", "remainder_", "eq_", "lt_",
    "xlogy_", "heaviside_", "floor_divide_", "logical_and_", "ne_", "gt_", "ge_", "le_",
)  # fmt: skip
# Without the mark: not even a single number may be on the CPU.
STRICT: dict[str, Callable[..., Any]] = {
    "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "igamma": torch.igamma, "igammac": torch.igammac,
    "nextafter": torch.nextafter, "clamp": torch.clamp, "clamp_min": torch.clamp_min, "clamp_max": torch.clamp_max,
    "complex": torch.complex, "polar": torch.polar,
}  # fmt: skip

_ITERATOR, _CHECK = "TensorIterator: one CPU scalar", "native_functions.yaml: no NoCheck"


def _binary(name: str, run: Callable[..., Any], make: Callable[..., Any]) -> list[Case]:
    whole, number = (2, 2), ()
    return [
        Case(f"{name}: two GPUs", run, (make(GPU0, *whole), make(GPU1, *whole)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: GPU and CPU", run, (make(GPU0, *whole), make(HOST, *whole)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: CPU and GPU", run, (make(HOST, *whole), make(GPU1, *whole)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: GPU and a CPU scalar", run, (make(GPU0, *whole), make(HOST, *number)), GPU0, rule=_ITERATOR),
        Case(f"{name}: a CPU scalar and GPU", run, (make(HOST, *number), make(GPU1, *whole)), GPU1, rule=_ITERATOR),
        Case(f"{name}: scalars of two GPUs", run, (make(GPU0, *whole), make(GPU1)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: a scalar of its GPU", run, (make(GPU1, *whole), make(GPU1)), GPU1, rule=_ITERATOR),
    ]


def _in_place(name: str) -> list[Case]:
    def run(a: Any, b: Any) -> Any:
        return getattr(a, name)(b)

    return [
        Case(f"{name} GPU, with a CPU scalar", run, (floats(GPU0, 2), floats(HOST)), GPU0, rule=_ITERATOR),
        Case(f"{name} a CPU scalar, with GPU", run, (floats(HOST), floats(GPU0)), REFUSED, rule=_ITERATOR),
        Case(f"{name} GPU, with another GPU", run, (floats(GPU0, 2), floats(GPU1, 2)), REFUSED, rule=_ITERATOR),
        Case(f"{name} CPU, with GPU", run, (floats(HOST, 2), floats(GPU1, 2)), REFUSED, rule=_ITERATOR),
        Case(f"{name} CPU, with a GPU's scalar", run, (floats(HOST, 2), floats(GPU1)), REFUSED, rule=_ITERATOR),
    ]


def _strict(name: str, run: Callable[..., Any]) -> list[Case]:
    return [
        Case(f"{name}: its GPU", run, (floats(GPU1, 2), floats(GPU1, 2)), GPU1, rule=_CHECK),
        Case(f"{name}: two GPUs", run, (floats(GPU0, 2), floats(GPU1, 2)), REFUSED, rule=_CHECK),
        Case(f"{name}: GPU and CPU", run, (floats(GPU0, 2), floats(HOST, 2)), REFUSED, rule=_CHECK),
        Case(f"{name}: GPU and a CPU scalar", run, (floats(GPU0, 2), floats(HOST)), REFUSED, rule=_CHECK),
        Case(f"{name}: a CPU scalar and GPU", run, (floats(HOST), floats(GPU0, 2)), REFUSED, rule=_CHECK),
    ]


def _out(name: str, run: Callable[..., Any]) -> list[Case]:
    def into(a: Any, out: Any) -> Any:
        return run(a, a, out=out)

    return [
        Case(f"{name}: out on its GPU", into, (floats(GPU1, 2), floats(GPU1, 2)), GPU1, rule=_ITERATOR),
        Case(f"{name}: out on another GPU", into, (floats(GPU0, 2), floats(GPU1, 2)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: out on the CPU", into, (floats(GPU0, 2), floats(HOST, 2)), REFUSED, rule=_ITERATOR),
    ]


def _three(name: str, run: Callable[..., Any], scalars: tuple[bool, bool, bool]) -> list[Case]:
    """An operator of three tensors; `scalars`: which of them may be a CPU scalar."""
    here, rule = floats(GPU0, 2), "PointwiseOpsKernel.cu and Lerp.cu: which CPU scalar"
    cases = [
        Case(f"{name}: two CPU scalars", run, (here, floats(HOST), floats(HOST)), REFUSED, rule=_ITERATOR),
        Case(f"{name}: all on GPU 0", run, (here, here, here), GPU0, rule=rule),
    ]
    for position, allowed in enumerate(scalars):
        for label, other, fine in (
            ("a CPU scalar", floats(HOST), allowed),
            ("a CPU vector", floats(HOST, 2), False),
            ("another GPU", floats(GPU1, 2), False),
        ):
            operands = [here, here, here]
            operands[position] = other
            cases.append(
                Case(f"{name}: {label} at {position}", run, tuple(operands), GPU0 if fine else REFUSED, rule=rule)
            )
    return cases


# Compositions that spread a number over a shape first: then it is a CPU tensor like all others.
_SPREADING: dict[str, Callable[..., Any]] = {
    "hstack": lambda a, b: torch.hstack([a[0], b]),  # TensorShape.cpp (hstack)
    "column_stack": lambda a, b: torch.column_stack([a[:, :1], b]),  # TensorShape.cpp (reshape_input_for_column_stack)
    "kron": torch.kron,  # LinearAlgebra.cpp (KronImpl)
    "prelu": torch.prelu,  # Activation.cpp (prelu)
    "mul by a view": lambda a, b: a * b.expand(2),
}

ELEMENTWISE = [
    *(
        Case(f"{name}: GPU and a CPU scalar that is spread", run, (floats(GPU1, 1, 2), floats(HOST)), REFUSED)
        for name, run in _SPREADING.items()
    ),
    *(case for name, run in ITERATED.items() for case in _binary(name, run, floats)),
    *(case for name, run in COUNTED.items() for case in _binary(name, run, counts)),
    *(case for name in IN_PLACE for case in _in_place(name)),
    *(case for name, run in STRICT.items() for case in _strict(name, run)),
    *(
        case
        for name in ("add", "sub", "mul", "div", "maximum", "hypot", "atan2")
        for case in _out(name, ITERATED[name])
    ),
    *_three("addcmul", torch.addcmul, (False, False, True)),
    *_three("addcdiv", torch.addcdiv, (False, False, True)),
    *_three("lerp", torch.lerp, (False, False, True)),
]
