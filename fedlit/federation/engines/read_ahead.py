"""Reading of the next batch, also of the next client, while the current one trains."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from fedlit.core.batches import BatchStream


class ReadAhead:
    """A thread that reads the next batch while the current one trains.

    A data set splits its batches in two for this: ``take(indices)`` reads without drawing random numbers, and
    ``finish(taken)``, in the training thread, may draw. So draws come in the same order as without it.

    Attributes:
        following: Stream and position from which the next client starts, after the last batch of the current one.

    Args:
        device: The device of the batches; for a GPU they are copied to page-locked memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        choose = torch.cuda.set_device if self._pinned else lambda device: None
        self._thread = ThreadPoolExecutor(1, "fedlit-read-ahead", choose, (device,))
        self._asked: tuple[BatchStream, int] | None = None
        self._taken: Future | None = None
        self.following: tuple[BatchStream, int] | None = None

    def __call__(self, stream: BatchStream, position: int, last: bool) -> Any:
        """Return a batch and start reading the next one: after a client's last batch, the next client's first."""
        here = self._asked == (stream, position)
        taken = self._taken.result() if here else stream.take(position)
        after = self.following if last else (stream, position + 1)
        if after != self._asked:
            self._asked = after
            self._taken = self._thread.submit(self._take, *after) if after else None
        return stream.dataset.finish(taken)

    def _take(self, stream: BatchStream, position: int) -> Any:
        taken = stream.take(position)
        if not self._pinned:
            return taken
        return tuple(part.pin_memory() if part.device.type == "cpu" else part for part in taken)
