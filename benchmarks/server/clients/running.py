"""Runs the tries of a client library, and says of each whether it worked; imports only Python's own library."""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any


def run_all(package: str, tries: Sequence[Callable[[str], Any]]) -> None:
    """Call each with the server's URL (of sys.argv), and print one line of JSON."""
    url, found = sys.argv[1], {}
    for work in tries:
        name = work.__name__.replace("_", " ")
        try:
            result = work(url)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            found[name] = {"ok": bool(result), "got": repr(result)[:120]}
        except Exception as error:
            found[name] = {"ok": False, "got": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps({"package": package, "version": version(package), "tries": found}))
