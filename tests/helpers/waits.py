"""How often the host waits while a call runs."""

from collections.abc import Callable
from typing import Any, TypeVar

from virtual_gpus import no_host_sync

Given = TypeVar("Given")


def waits(call: Callable[[Given], Any], *given: Given) -> tuple[list[int], Any]:
    """How often the host waits in each of some calls, such as those of other numbers of tokens; and the last result."""
    counts = []
    for one in given:
        with no_host_sync(count=True) as report:
            made = call(one)
        counts.append(report.count)
    return counts, made
