"""Builds what exllamav2 and exllamav3 compile when they are first imported, where they are installed.

A build that is ended goes on where it was when this is run again.
"""

import sys
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from torch.utils import cpp_extension


def main() -> int:
    failed = False
    for package in ("exllamav2", "exllamav3"):
        if find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        folder, begin = Path(cpp_extension._get_build_directory(f"{package}_ext", False)), time.monotonic()
        (folder / "lock").unlink(missing_ok=True)  # of a build that was killed; the import would wait for it for ever
        try:
            import_module(package)
        except Exception:  # there is no nvcc, or what it compiles is wrong
            traceback.print_exc()
            failed = True
        else:
            print(f"{package} is built, imported in {time.monotonic() - begin:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
