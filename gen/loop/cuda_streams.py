"""The streams on which the work of a set of rows runs: its own streams on the model's devices, not the current ones."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gen.devices import Placement, current, resolve_device
from gen.runtime.isolation import own_settings
from gen.runtime.lent_streams import POOL, lend, may_capture

logger = logging.getLogger("gen")


class Streams:
    """The streams of a set of rows: one on each GPU of the model, and one that copies results to the host.

    The rows are made, filled and stepped on these streams only. So work is done in the order in which it is launched,
    and memory that the rows free is only used again by work that is launched later. The rows keep the streams until
    they are deleted; then others may borrow them.

    Attributes:
        home: the logits' device.
        copies: the stream for copies from there to the host, which run before other work; None on a CPU.
        captures: whether CUDA graphs may be captured on the streams.
    Raises:
        DeviceError: a device of the model does not exist any more.
    """

    def __init__(self, placement: Placement) -> None:
        self.home = placement.logits_device
        self._inside = False
        # checks the devices: a model may be left over from virtual GPUs
        gpus = [resolve_device(device) for device in placement.devices if device.type == "cuda"]
        self._streams = [lend(self, device) for device in gpus]
        self.copies = lend(self, self.home, high_priority=True) if self.home.type == "cuda" else None
        self.captures = all(map(may_capture, self._streams))
        if not self.captures:
            logger.info("steps on %s are not captured: others use the %d streams that torch has there", self.home, POOL)

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block, the logits' device and these streams are the thread's current ones.

        The streams wait for earlier work of the caller's own streams. In the block, torch's settings are gen's; see
        `gen.runtime.isolation`. A block within another block of the same streams changes nothing.
        """
        if self._inside:
            yield
            return
        with ExitStack() as contexts:
            self._inside = True
            contexts.callback(setattr, self, "_inside", False)
            contexts.enter_context(own_settings())
            contexts.enter_context(torch.inference_mode())
            for stream in self._streams:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
                contexts.enter_context(torch.cuda.stream(stream))
            contexts.enter_context(current(self.home))
            yield
