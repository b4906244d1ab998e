"""Where work on a set of rows runs: on the model's devices, and on streams of its own instead of the current ones."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gen.devices import Placement, current, resolve_device
from gen.isolation import own_settings
from gen.lent_streams import POOL, lend, may_capture

logger = logging.getLogger("gen")


class Streams:
    """A stream of its own on each GPU of a model, and one that copies results to the host.

    A set of rows is made, filled and stepped on these streams alone: what is launched is done in order, and memory that
    it gives back is only used again by what is launched after. It keeps them as long as it lives; then they are lent to
    others.

    Attributes:
        home: the logits' device.
        copies: for copies from there to the host, which come before other work; None on a CPU.
        captures: whether CUDA graphs may be captured on them.
    Raises:
        DeviceError: a device of the model's does not exist any more.
    """

    def __init__(self, placement: Placement) -> None:
        self.home = placement.logits_device
        self._inside = False
        # a model may be left over from virtual GPUs
        gpus = [resolve_device(device) for device in placement.devices if device.type == "cuda"]
        self._streams = [lend(self, device) for device in gpus]
        self.copies = lend(self, self.home, high_priority=True) if self.home.type == "cuda" else None
        self.captures = all(map(may_capture, self._streams))
        if not self.captures:
            logger.info("steps on %s are not captured: others use the %d streams that torch has there", self.home, POOL)

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block, the logits' device and these streams are the thread's current ones; nothing of it stays.

        They wait for what the caller's own streams were given before. Torch's settings are gen's, see `gen.isolation`.
        A block within another one of theirs changes nothing.
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
