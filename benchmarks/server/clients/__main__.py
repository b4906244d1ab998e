"""Tries a client library with a server: `python -m benchmarks.server.clients openai URL`. Prints one line of JSON.

A try works if it raises nothing and gives something that is true. Only Python's own library and pydantic, which each
environment has, are imported here.
"""

import asyncio
import inspect
import json
import sys
from importlib.metadata import version

from benchmarks.server.clients import makers, others

PACKAGES = {"langchain": "langchain-openai", "openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim"}


def main(library: str, url: str) -> None:
    found = {}
    tries = getattr(makers, library, None) or getattr(others, library)
    for name, work in tries(url).items():
        try:
            result = work()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            told = {"ok": bool(result), "got": repr(result)[:120]}
        except Exception as error:
            told = {"ok": False, "got": f"{type(error).__name__}: {error}"[:300]}
        found[name] = told
    package = PACKAGES.get(library, library)
    print(json.dumps({"package": package, "version": version(package), "tries": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
