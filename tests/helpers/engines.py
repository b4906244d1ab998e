"""Models whose steps wait until a test lets them go on, and checks of engines and their threads."""

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tests.helpers.scripted_model import ScriptedModel, ScriptedRows


class GatedRows(ScriptedRows):
    _model: "GatedModel"

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        self._model.begun.release()
        assert self._model.gate.acquire(timeout=60)  # a test that fails leaves it closed
        return super().step(token_ids, view)


class GatedModel(ScriptedModel):
    """Signals when a step begins, and waits for permission to go on."""

    rows = GatedRows

    def __init__(self, script: Callable[[str], Sequence[int]] | str = "hello") -> None:
        super().__init__(script)
        self.gate, self.begun = threading.Semaphore(0), threading.Semaphore(0)

    def open(self) -> None:
        """Go on without waiting."""
        self.gate.release(10**4)  # each takes time; no test makes more steps


class FailingModel(GatedModel):
    class rows(GatedRows):
        def step(self, token_ids: Tensor, view: int) -> Tensor:
            super().step(token_ids, view)
            raise ZeroDivisionError("no step")


async def text_of(stream: Any) -> str:
    return "".join([piece async for piece in stream])


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "gen engine"}


def ends(thread: threading.Thread) -> bool:
    """Whether a thread that nobody refers to ends, once it has given its rows back and they are collected."""
    for _ in range(6000):
        gc.collect()
        thread.join(0.01)
        if not thread.is_alive():
            return True
    return False
