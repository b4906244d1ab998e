"""torch.cuda.set_sync_debug_mode on virtual GPUs: warns of a host sync, or raises."""

import warnings

from virtual_gpus.call_sites import CallSite
from virtual_gpus.syncs import reports

_MODES = {"default": 0, "warn": 1, "error": 2}
_MESSAGE = "called a synchronizing CUDA operation"


class DebugMode:
    """A listener to host syncs; like CUDA's, it ignores explicit ones, such as torch.cuda.synchronize."""

    def __init__(self) -> None:
        self.mode = 0

    def add(self, what: str, site: CallSite | None) -> None:
        if "synchronize" in what:
            return
        if self.mode == 2:
            raise RuntimeError(_MESSAGE)
        warnings.warn(_MESSAGE, UserWarning, stacklevel=4)


_mode = DebugMode()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """torch.cuda.set_sync_debug_mode."""
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _MODES[debug_mode]
    _mode.mode = debug_mode
    reports.unlisten(_mode)
    if debug_mode:
        reports.listen(_mode)


def get_sync_debug_mode() -> int:
    return _mode.mode
