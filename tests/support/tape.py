"""A CUDA graph's stand-in on a CPU: the operations of some work on a tape, run again without the Python around them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim"}
"""Operations for which a host waits for its GPU."""


class Noticing(TorchDispatchMode):
    """Notes the operations that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        if operation._schema.name.removeprefix("aten::") in WAITING:
            self.waits.append(str(operation))
        return operation(*given, **(named or {}))


class Taping(TorchDispatchMode):
    """Writes down every operation, and what each tensor from outside held before."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple] = []
        self.before: list[tuple[Tensor, Tensor]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        named = named or {}
        if operation._schema.name.removeprefix("aten::") in WAITING:
            raise RuntimeError(f"{operation} is not permitted while a stream is capturing")
        for tensor in self._tensors((given, named)):
            if self._new(tensor):
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                self.before.append((whole, whole.clone()))
        out = operation(*given, **named)
        for tensor in self._tensors(out):
            self._new(tensor)
        self.tape.append((operation, given, named, out))
        return out

    def _new(self, tensor: Tensor) -> bool:
        place = tensor.untyped_storage().data_ptr()
        return place not in self._known and not self._known.add(place)

    @staticmethod
    def _tensors(value) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]

    def run(self) -> None:
        """Do all of it again, each result where it was."""
        with torch.no_grad():
            for operation, given, named, out in self.tape:
                again = operation(*given, **named)
                for place, tensor in zip(self._tensors(out), self._tensors(again), strict=True):
                    if place.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                        place.copy_(tensor)


class TapeRecorder:
    """Records as a CUDA graph does: the work is not done when it is recorded, and draws anew when it is replayed."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.warmed, self.recorded, self.replayed = 0, 0, 0

    @contextmanager
    def warming(self) -> Iterator[list[str]]:
        """Note what waits."""
        self.warmed, waits = self.warmed + 1, []
        with Noticing() as noticing:
            yield waits
        waits += noticing.waits

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work once, and undo it."""
        self.recorded += 1
        taping, draws = Taping(), torch.get_rng_state()
        with taping:
            work()
        torch.set_rng_state(draws)
        with torch.no_grad():
            for tensor, value in taping.before:
                tensor.copy_(value)

        def replay() -> None:
            self.replayed += 1
            taping.run()

        return replay
