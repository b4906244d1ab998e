"""Runs the tries of a client library, and says of each whether it worked; imports only Python's own library."""

import asyncio
import inspect
import json
import sys
from importlib.metadata import version


def run_all(package: str) -> None:
    """Call each function of the program that takes the server's URL alone (of sys.argv), unless its name begins with an
    underscore, and print one line of JSON."""
    url, found = sys.argv[1], {}
    own = [one for one in vars(sys.modules["__main__"]).values() if getattr(one, "__module__", "") == "__main__"]
    tries = [one for one in own if inspect.isfunction(one) and not one.__name__.startswith("_")]
    for work in tries:
        if [*inspect.signature(work).parameters] != ["url"]:
            continue
        try:
            result = work(url)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            told = {"ok": bool(result), "got": repr(result)[:120]}
        except Exception as error:
            told = {"ok": False, "got": f"{type(error).__name__}: {error}"[:300]}
        found[work.__name__.replace("_", " ")] = told
    print(json.dumps({"package": package, "version": version(package), "tries": found}))
