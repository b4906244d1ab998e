"""Where a set of rows is worked on: the model's own devices and streams, whatever is current in the caller's thread."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gen.devices import Placement, current, resolve_device
from gen.isolation import own_settings


class Streams:
    """A stream of its own on each GPU of a model.

    A set of rows is made, filled and stepped on these streams alone: what is launched is done in order, and memory that
    it gives back is only used again by what is launched after. A stream serves one set of rows at a time.

    Attributes:
        home: the logits' device.
    Raises:
        DeviceError: a device of the model's does not exist any more.
    """

    def __init__(self, placement: Placement) -> None:
        self.home = placement.logits_device
        self._inside = False
        # a model may be left over from virtual GPUs
        gpus = [resolve_device(device) for device in placement.devices if device.type == "cuda"]
        self._streams = [torch.cuda.Stream(device) for device in gpus]  # type: ignore[no-untyped-call]

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
