"""The flat vector: every trainable parameter of a module as one contiguous tensor.

Algorithms are arithmetic on this vector, so they cost one fused pass a step whatever the number of layers.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from fedlit.errors import ConfigError

SLICES = ("body", "norm", "head", "dual")
NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Entry:
    """One parameter or buffer in its flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    group: int
    per_class: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    def view(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.size].view(self.shape)


@dataclass(frozen=True)
class Run:
    """A stretch ``[start, stop)`` of the weight vector whose elements belong to one group."""

    start: int
    stop: int
    group: int


@dataclass(frozen=True)
class Layout:
    """Where everything lies in the weight vector ``w`` [P] and the statistics vector ``stats`` [S].

    Parameters are ordered body | norm | head | dual, so each of these slices is contiguous: ``head`` is what
    the module names so, ``norm`` the affine parameters of normalisation layers (found by type), ``dual`` what
    an objective maximises over, ``body`` the rest. A frozen parameter (``requires_grad=False``) has no place in it: it
    is the same everywhere and never travels. A *group* is the finest set of elements that a client owns
    or lacks as a whole: a slice, or within it the rows of one class; the statistics are one more group.

    Attributes:
        parameters: one entry a parameter, in flat order.
        buffers: one entry a floating-point buffer (BatchNorm's running mean and variance), in flat order.
        classes: the federation's classes, in the order of the head's rows.
        dtype: of the parameters; float32, or float64 with ``--fabric.precision 64-true``.
        frozen: hash of the frozen parameters, or "".
    """

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    classes: tuple[str, ...]
    dtype: torch.dtype
    frozen: str = ""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """Read the layout off a module, after its device and dtype are final.

        Args:
            module: may have an attribute ``head`` (a submodule) and ``classes``; any submodule may declare
                ``dual_parameters`` and ``per_class_parameters`` (names of its own parameters).

        Raises:
            ConfigError: parameters of several dtypes, or a BatchNorm with a cumulative average.
        """
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) != 1:
            found = ", ".join(sorted(map(str, dtypes))) or "no trainable parameters"
            raise ConfigError(f"{type(module).__name__}: expected parameters of one dtype, found {found}")
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.momentum is None:
                raise ConfigError(
                    f"{name}: BatchNorm with momentum=None averages over a client's whole history, which no "
                    "round can reproduce; give it a momentum such as 0.1"
                )
        classes = tuple(getattr(module, "classes", ()))
        norm = _names(module, lambda layer: isinstance(layer, NORM_TYPES))
        head = {f"head.{n}" for n, _ in head_of(module).named_parameters()} - norm
        dual, rows = _declared(module, "dual_parameters"), _declared(module, "per_class_parameters")
        slice_of = {
            n: "dual" if n in dual else "norm" if n in norm else "head" if n in head | rows else "body"
            for n, _ in named
        }
        entries, offset = [], 0
        for name, parameter in sorted(named, key=lambda item: SLICES.index(slice_of[item[0]])):
            per_class = name in rows or (name in head and parameter.shape[:1] == (len(classes),))
            if name in rows and parameter.shape[:1] != (len(classes),):
                raise ConfigError(
                    f"{name} has shape {tuple(parameter.shape)}, expected {len(classes)} rows, one a class"
                )
            group = SLICES.index(slice_of[name]) * (len(classes) + 1)
            entries.append(Entry(name, tuple(parameter.shape), offset, group, per_class))
            offset += parameter.numel()
        buffers, offset = [], 0
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                buffers.append(Entry(name, tuple(buffer.shape), offset, len(SLICES) * (len(classes) + 1)))
                offset += buffer.numel()
        return cls(tuple(entries), tuple(buffers), classes, dtypes.pop(), _frozen(module))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The weight vector as stretches of one group each."""
        merged: list[Run] = []
        for entry in self.parameters:
            rows = entry.shape[0] if entry.per_class else 1
            step = entry.size // rows
            for row in range(rows):
                start = entry.offset + row * step
                group = entry.group + (row + 1 if entry.per_class else 0)
                if merged and merged[-1].group == group:
                    start = merged.pop().start
                merged.append(Run(start, entry.offset + (row + 1) * step, group))
        return tuple(merged)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where body, norm, head and dual lie in the weight vector."""
        rows, stop, found = len(self.classes) + 1, 0, {}
        for s, name in enumerate(SLICES):
            start = stop
            stop += sum(e.size for e in self.parameters if e.group // rows == s)
            found[name] = slice(start, stop)
        return found

    @cached_property
    def size(self) -> int:
        """P, the number of weights."""
        return sum(e.size for e in self.parameters)

    @cached_property
    def stats_size(self) -> int:
        """S, the number of statistics."""
        return sum(e.size for e in self.buffers)

    @property
    def num_groups(self) -> int:
        return len(SLICES) * (len(self.classes) + 1) + 1

    @property
    def stats_group(self) -> int:
        return self.num_groups - 1

    def groups(self, slices: tuple[str, ...] = SLICES, classes: tuple[str, ...] | None = None) -> list[int]:
        """Indices of the groups in these slices; with ``classes``, only the rows of those."""
        rows = range(len(self.classes) + 1) if classes is None else [self.classes.index(c) + 1 for c in classes]
        return [SLICES.index(s) * (len(self.classes) + 1) + r for s in slices for r in rows]

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any name, shape, order, class or dtype; checked at resume and between processes."""
        text = repr((self.parameters, self.buffers, self.classes, self.dtype, self.frozen))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def zeros(self, device: torch.device | str = "cpu") -> Tensor:
        """A vector [P] of zeros."""
        return torch.zeros(self.size, dtype=self.dtype, device=device)

    def spans(self, values: Tensor) -> list[tuple[int, int, float]]:
        """``values`` [num_groups] over the weight vector, as merged stretches (start, stop, value)."""
        table, merged = values.tolist(), []
        for run in self.runs:
            if merged and merged[-1][1] == run.start and merged[-1][2] == table[run.group]:
                merged[-1] = (merged[-1][0], run.stop, table[run.group])
            else:
                merged.append((run.start, run.stop, table[run.group]))
        return merged

    def expand(self, values: Tensor) -> Tensor:
        """``values`` [num_groups] per element [P]; a scalar where all weights have the same value."""
        spans = self.spans(values)
        if len(spans) == 1:
            return torch.tensor(spans[0][2], dtype=self.dtype)
        out = self.zeros()
        for start, stop, value in spans:
            out[start:stop] = value
        return out


class FlatModel:
    """A module whose parameters, gradients and statistics are views of three flat vectors.

    Attributes:
        parameters: the module's, in flat order.
        w: [P] weights; writing to it changes the module.
        grad: [P] gradients; ``backward`` adds to it.
        stats: [S] running statistics. Counters such as ``num_batches_tracked`` stay with the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = layout = Layout.of(module)
        device = next(p for p in module.parameters() if p.requires_grad).device
        self.w, self.grad = layout.zeros(device), layout.zeros(device)
        self.stats = torch.zeros(layout.stats_size, dtype=layout.dtype, device=device)
        named = dict(module.named_parameters())
        self.parameters = [named[entry.name] for entry in layout.parameters]
        for entry, parameter in zip(layout.parameters, self.parameters, strict=True):
            entry.view(self.w).copy_(parameter.detach())
            parameter.data, parameter.grad = entry.view(self.w), entry.view(self.grad)
        for entry in layout.buffers:
            owner_name, _, leaf = entry.name.rpartition(".")
            owner = module.get_submodule(owner_name)
            entry.view(self.stats).copy_(owner._buffers[leaf])
            owner._buffers[leaf] = entry.view(self.stats)

    def load(self, w: Tensor, stats: Tensor) -> None:
        """Copy weights and statistics in."""
        self.w.copy_(w)
        self.stats.copy_(stats)

    def views(self, vector: Tensor) -> list[Tensor]:
        """A vector [P] as tensors of the parameters' shapes, in flat order."""
        entries = self.layout.parameters
        return [part.view(e.shape) for part, e in zip(vector.split([e.size for e in entries]), entries, strict=True)]

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient [P] of a loss as a vector of its own; ``grad`` stays as it is."""
        return gathered(torch.autograd.grad(loss, self.parameters, materialize_grads=True))

    @contextmanager
    def at(self, vector: Tensor) -> Iterator[None]:
        """Inside, the module computes with another vector [P] in place of ``w``; nothing is copied.

        A graph that was recorded outside may not be used inside, nor the other way round.
        """
        self._point_at(vector)
        try:
            yield
        finally:
            self._point_at(self.w)

    def _point_at(self, vector: Tensor) -> None:
        for parameter, view in zip(self.parameters, self.views(vector), strict=True):
            parameter.data = view


def gathered(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def head_of(module: nn.Module) -> nn.Module:
    """The part that a module names ``head``; an empty one where it names none (then all is body)."""
    head = getattr(module, "head", None)
    return head if isinstance(head, nn.Module) else nn.Module()


def _frozen(module: nn.Module) -> str:
    """Hash over the names and values of frozen parameters, "" where there are none."""
    digest = hashlib.sha256()
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    for name, parameter in frozen:
        digest.update(name.encode() + parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16] if frozen else ""


def _names(module: nn.Module, chosen: Callable[[nn.Module], bool]) -> set[str]:
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, layer in module.named_modules()
        if chosen(layer)
        for name, _ in layer.named_parameters(recurse=False)
    }


def _declared(module: nn.Module, attribute: str) -> set[str]:
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, layer in module.named_modules()
        for name in getattr(layer, attribute, ())
    }
