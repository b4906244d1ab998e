"""How the host reads a virtual tensor: as numbers, text, NumPy arrays and files. Each waits for the device."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from virtual_gpus.streams import accesses
from virtual_gpus.syncs.reports import not_reported, report_sync
from virtual_gpus.tensors import dlpack
from virtual_gpus.tensors.plain_tensors import as_plain, plain


class HostAccess(Tensor):
    """The methods of a virtual tensor that give its values to the host."""

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is not None:
            return Tensor.type(self, dtype, non_blocking, **kwargs)
        return plain(self).type().replace("torch.", "torch.cuda.", 1)

    def tolist(self) -> Any:
        report_sync("tolist")
        accesses.waited_for(self)
        return self.host_copy().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        report_sync("numpy")
        accesses.waited_for(self)
        return self.host_copy().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def host_copy(self) -> Tensor:
        """Its values as an ordinary CPU tensor with memory of its own; not reported as a host sync."""
        with torch.no_grad(), as_plain():
            return self.clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        report_sync("printing a tensor")
        accesses.waited_for(self)
        with not_reported():
            shown = self.host_copy()
            if self.requires_grad and self.is_leaf:
                shown.requires_grad_()
            text = f"{shown!r}"
        kind = "Parameter containing:\n" if isinstance(self, Parameter) else ""
        return f"{kind}{text[:-1]}, device='{self.device}')"

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if self.dim() == 0 else object.__format__(self, format_spec)

    def __dlpack_device__(self) -> Any:
        return torch.utils.dlpack.DLDeviceType.kDLCUDA, self.get_device()

    def __dlpack__(
        self,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """See `virtual_gpus.tensors.dlpack`. Host sync: copies to the CPU if the caller asks for it."""
        dlpack.check_export(self)
        if dl_device is not None and dl_device[0] == torch.utils.dlpack.DLDeviceType.kDLCPU:
            if copy is False:
                raise ValueError(f"cannot move (i.e. copy=False) tensor from {self.device} to cpu without copying.")
            report_sync("__dlpack__: copy to the host")
            return self.host_copy().__dlpack__(max_version=max_version)
        return dlpack.capsule_of(self.clone() if copy else self, max_version)

    def apply_(self, function: Any) -> Any:
        raise TypeError("apply_ is only implemented on CPU tensors")

    def map_(self, tensor: Any, function: Any) -> Any:
        raise TypeError("map_ is only implemented on CPU tensors")

    def map2_(self, x: Any, y: Any, function: Any) -> Any:
        raise TypeError("map2_ is only implemented on CPU tensors")
