"""torch.cuda.nvtx: marks for a profiler, which have no effect here."""


class Ranges:
    """torch.cuda.nvtx's C++ part: it counts only the depth of ranges."""

    def __init__(self) -> None:
        self.depth = -1

    def rangePushA(self, message: str) -> int:
        self.depth += 1
        return self.depth

    def rangePop(self) -> int:
        self.depth -= 1
        return self.depth + 1

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, range_id: int) -> None:
        """A range has no other effect."""

    def markA(self, message: str) -> None:
        """A mark has no effect."""

    def deviceRangeStart(self, *args: object) -> None:
        """A range of a device has no effect."""

    def deviceRangeEnd(self, *args: object) -> None:
        """The end of a device's range has no effect."""
