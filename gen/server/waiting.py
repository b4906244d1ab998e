"""How long a request is worked on: until it is answered, its client leaves, its time is over or the server ends."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from gen.errors import EngineClosed
from gen.server.errors import ClientGone

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")


class UnderWay:
    """The work of all requests of a server.

    Attributes:
        ended: whether the server has ended it.
        tasks: do it.
    """

    def __init__(self) -> None:
        self.ended = False
        self.tasks = set[asyncio.Task[Any]]()

    def end(self) -> int:
        """End all work with `EngineClosed`, as soon as the event loop runs; returns how many requests that cuts."""
        self.ended = True
        for task in self.tasks:
            task.cancel()
        return len(self.tasks)

    def request(self, seconds: float) -> "Wanted":
        """A request that comes now, and may take so many seconds."""
        return Wanted(self, asyncio.get_running_loop().time() + seconds)


class Wanted:
    """A request: all of its work has to be done before one moment.

    Args:
        deadline: that moment, on the event loop's clock.
    """

    def __init__(self, under_way: UnderWay, deadline: float) -> None:
        self._under_way, self._deadline = under_way, deadline

    async def result(self, work: Coroutine[Any, Any, T], receive: "Receive | None" = None) -> T:
        """The result of some work, which is cancelled where nobody wants it any more.

        Args:
            receive: tells that the client has left; None where the work itself receives from it.
        Raises:
            ClientGone: the client has left.
            TimeoutError: the time is over.
            EngineClosed: the server ends.
            Exception: what the work raises.
        """
        tasks, task = self._under_way.tasks, asyncio.create_task(work)
        others = [] if receive is None else [asyncio.create_task(_left(receive))]
        tasks.add(task)
        if self._under_way.ended:
            task.cancel()
        try:
            timeout = max(0, self._deadline - asyncio.get_running_loop().time())
            await asyncio.wait([task, *others], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.cancelled():
                raise EngineClosed("the server ends before the answer is whole.")
            if task.done():
                return task.result()
            raise ClientGone if any(one.done() for one in others) else TimeoutError
        finally:
            tasks.discard(task)
            for one in (task, *others):
                one.cancel()
            await asyncio.gather(task, *others, return_exceptions=True)


async def _left(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
