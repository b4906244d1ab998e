"""Which calls of torch launch a kernel or a copy on a GPU: views do not, nor does memory that nothing writes to."""

from typing import Any

import torch

_COMPOSITE = "CompositeImplicitAutograd"  # made of other operators, which are counted
_NO_WORK = ("empty", "new_empty", "_unsafe_view", "alias", "detach", "lift_fresh")


def launches(func: Any) -> bool:
    """Whether this operator, as torch dispatches it, launches a kernel or a copy."""
    name = func._schema.name
    if func.is_view or name.removeprefix("aten::").startswith(_NO_WORK):
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)
