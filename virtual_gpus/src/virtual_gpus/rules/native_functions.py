"""torch's own data about operators: the device checks of native_functions.yaml, which torch ships."""

import re
from functools import cache
from pathlib import Path

from virtual_gpus.torch_parts import lacking


@cache
def without_device_check() -> frozenset[str]:
    """The names, such as "add.Tensor", of the operators that torch marks `device_check: NoCheck`.

    Their kernels check devices themselves: on CUDA, those over a TensorIterator take 0-dim CPU tensors. All other
    operators refuse any CPU tensor. The file is read line by line, since parsing it as YAML takes seconds.

    Raises:
        DeviceError: this torch does not ship the file.
    """
    try:
        import torchgen  # type: ignore[import-untyped]
    except ImportError as error:
        raise lacking("torchgen, which torch's wheels contain") from error
    path = Path(torchgen.__path__[0], "packaged", "ATen", "native", "native_functions.yaml")
    if not path.is_file():
        raise lacking(f"the table of its operators at {path}")
    names = set()
    name = ""
    for line in path.read_text().splitlines():
        if found := re.match(r"- func: ([\w.]+)\(", line):
            name = found[1]
        elif line.lstrip().startswith("device_check: NoCheck"):
            names.add(name)
    return frozenset(names)
