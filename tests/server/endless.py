"""Types that take for ever to compile; the process that compiles them imports this file, so it imports little."""

import os
from pathlib import Path
from typing import NoReturn


def endless(number: int) -> NoReturn:
    while True:
        number += 1


def begun(file: Path) -> NoReturn:
    """Write the process's number to a file, and go on for ever."""
    file.write_text(f"{os.getpid()}\n")
    endless(0)
