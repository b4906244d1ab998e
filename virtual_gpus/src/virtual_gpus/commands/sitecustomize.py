"""Opens the block of virtual GPUs that the environment asks for, as soon as the program has imported torch.

This file imports only modules that Python reads at its start, so that programs without torch start as fast as before.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder


class _AfterTorch:
    """Finds torch, and opens the block once torch is imported; a mere search for torch changes nothing."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_open(module):  # type: ignore[no-untyped-def]
                sys.meta_path.remove(cls)
                load(module)
                _open()

            spec.loader.exec_module = load_and_open  # type: ignore[method-assign]
        return spec


def _open() -> None:
    root = os.path.dirname(os.path.dirname(_folder))
    if root not in sys.path:
        sys.path.append(root)  # for a package that is not installed
    from virtual_gpus.children import open_in_child

    gpus, memory, device = os.environ["VIRTUAL_GPUS"].split()
    open_in_child(int(gpus), int(memory), device)


def _run_the_next() -> None:
    """Run the environment's own sitecustomize, which this one hides."""
    sys.path[:] = [folder for folder in sys.path if folder != _folder]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


_folder = os.path.dirname(os.path.abspath(__file__))
if "VIRTUAL_GPUS" in os.environ:
    sys.meta_path.insert(0, _AfterTorch)
_run_the_next()
