"""The flat vector: all trainable parameters of a module as one contiguous tensor.

Algorithms are arithmetic on this vector, so each costs one fused pass per step, whatever the number of layers.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedlit.core.buffers import OwnBuffers, places_of_buffers
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.parts import Parts
from fedlit.core.system.devices import unchanged, weight_formats

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
        """Number of its elements."""
        return prod(self.shape)

    def view(self, vector: Tensor) -> Tensor:
        """Return its elements of a vector, in its shape, without a copy."""
        return vector[self.offset : self.offset + self.size].view(self.shape)


class Segment(NamedTuple):
    """A range ``[start, stop)`` of the weight vector whose elements belong to one group, or have one value."""

    start: int
    stop: int
    group: Any


def joined(segments: Iterable[tuple[int, int, Any]]) -> list[Segment]:
    """Join neighbouring segments of the same group."""
    merged: list[Segment] = []
    for start, stop, group in segments:
        if merged and merged[-1].group == group and merged[-1].stop == start:
            start = merged.pop().start
        merged.append(Segment(start, stop, group))
    return merged


@dataclass(frozen=True)
class Layout:
    """Positions of all values in the weight vector ``w`` [P] and the statistics vector ``stats`` [S].

    Parameters are ordered body | norm | head | dual, so each of these slices is contiguous: ``head`` is the module's
    attribute of that name, ``norm`` the affine parameters of normalisation layers (found by type), ``dual`` what an
    objective maximises over, ``body`` the rest. A frozen parameter (``requires_grad=False``) is not in the vector: it
    is the same everywhere and is never sent. A *group* is the finest set of elements that a client owns or lacks as a
    whole: a slice, or the rows of one class within it; the statistics are one more group.

    Attributes:
        parameters: One entry per parameter, in flat order.
        buffers: One entry per floating-point buffer (BatchNorm's running mean and variance), in flat order.
        classes: The federation's classes, in the order of the head's rows.
        dtype: The parameters' dtype; float32, or float64 with ``--fabric.precision 64-true``.
        frozen: Hash of the frozen parameters, "" if there are none.
    """

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    classes: tuple[str, ...]
    dtype: torch.dtype
    frozen: str = ""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """Read the layout of a module, after its device and dtype are final.

        Args:
            module: Any module; :class:`fedlit.core.parts.Parts` lists what it may declare.

        Raises:
            ConfigError: Parameters do not fit one vector, or a BatchNorm has a cumulative average.
        """
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        _check_parameters(type(module).__name__, named, sum(1 for _ in module.parameters()))
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.momentum is None:
                history = "averages over a client's whole history, which no round can reproduce"
                raise ConfigError(f"{name}: BatchNorm with momentum=None {history}; give it a momentum such as 0.1")
        parts = Parts.of(module)
        classes, head_layers = parts.classes, parts.head or nn.Module()
        layers = [(prefix, layer) for prefix, layer in module.named_modules() if isinstance(layer, NORM_TYPES)]
        norm = {f"{p}.{n}".lstrip(".") for p, layer in layers for n, _ in layer.named_parameters(recurse=False)}
        head = {f"head.{n}" for n, _ in head_layers.named_parameters()} - norm
        dual, rows = _declared(module, "dual_parameters"), _declared(module, "per_class_parameters")
        members = {"dual": dual, "norm": norm, "head": head | rows}  # the first that has a name
        slice_of = {n: next((s for s, names in members.items() if n in names), "body") for n, _ in named}
        entries, offset = [], 0
        for name, parameter in sorted(named, key=lambda item: SLICES.index(slice_of[item[0]])):
            per_class = name in rows or (name in head and parameter.shape[:1] == (len(classes),))
            if name in rows and parameter.shape[:1] != (len(classes),):
                raise ConfigError(
                    f"{name}: expected {len(classes)} rows, one per class, found shape {tuple(parameter.shape)}"
                )
            group = SLICES.index(slice_of[name]) * (len(classes) + 1)
            entries.append(Entry(name, tuple(parameter.shape), offset, group, per_class))
            offset += parameter.numel()
        buffers, offset = [], 0
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                buffers.append(Entry(name, tuple(buffer.shape), offset, len(SLICES) * (len(classes) + 1)))
                offset += buffer.numel()
        return cls(tuple(entries), tuple(buffers), classes, named[0][1].dtype, _frozen(module))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The weight vector as segments of one group each."""
        rows: list[tuple[int, int, int]] = []
        for entry in self.parameters:
            number = entry.shape[0] if entry.per_class else 1
            step = entry.size // number
            for row in range(number):
                start = entry.offset + row * step
                rows.append((start, start + step, entry.group + (row + 1 if entry.per_class else 0)))
        return tuple(joined(rows))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Positions of body, norm, head and dual in the weight vector."""
        rows, stop, slices = len(self.classes) + 1, 0, {}
        for s, name in enumerate(SLICES):
            start = stop
            stop += sum(e.size for e in self.parameters if e.group // rows == s)
            slices[name] = slice(start, stop)
        return slices

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
        """Number of groups, including that of the statistics."""
        return len(SLICES) * (len(self.classes) + 1) + 1

    @property
    def stats_group(self) -> int:
        """Index of the group of the statistics."""
        return self.num_groups - 1

    def groups(self, slices: tuple[str, ...] = SLICES, classes: tuple[str, ...] | None = None) -> list[int]:
        """Return the indices of the groups in these slices; with ``classes``, only those of their rows."""
        rows = range(len(self.classes) + 1) if classes is None else [self.classes.index(c) + 1 for c in classes]
        return [SLICES.index(s) * (len(self.classes) + 1) + r for s in slices for r in rows]

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with any name, shape, order, class or dtype; compared at resume and between processes."""
        text = repr((self.parameters, self.buffers, self.classes, self.dtype, self.frozen))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def zeros(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a vector [P] of zeros."""
        return torch.zeros(self.size, dtype=self.dtype, device=device)

    def spans(self, values: Tensor) -> list[Segment]:
        """Spread ``values`` [num_groups] over the weight vector: merged ranges (start, stop, value)."""
        table = tuple(values.tolist())
        spans = self._masks.get(table) if values.dtype == torch.bool else None
        if spans is None:
            spans = joined((start, stop, table[group]) for start, stop, group in self.segments)
            if values.dtype == torch.bool:
                self._masks[table] = spans
        return spans

    @cached_property
    def _masks(self) -> dict[tuple[bool, ...], list[Segment]]:
        return {}

    def expand(self, values: Tensor) -> Tensor:
        """Return ``values`` [num_groups] per element [P]; a scalar if all weights have the same value."""
        spans = self.spans(values)
        if len(spans) == 1:
            return torch.tensor(spans[0][2], dtype=self.dtype)
        out = self.zeros()
        for start, stop, value in spans:
            out[start:stop] = value
        return out


class FlatModel:
    """A module whose parameters, gradients and statistics are views of three flat vectors.

    Args:
        module: The module.
        channels_last: Whether its convolutions compute in that memory format; the order in the vectors is unchanged.

    Attributes:
        parameters: The module's trainable parameters, in flat order.
        w: [P] weights; writing to it changes the module.
        grad: [P] gradients; ``backward`` adds to it. Its memory is allocated at the first access.
        stats: [S] running statistics.
        own: The buffers that are not statistics.
    """

    def __init__(self, module: nn.Module, channels_last: bool = False) -> None:
        self.module: Any = module  # with the attributes of the user's class
        self.layout = layout = Layout.of(module)
        device = next(p for p in module.parameters() if p.requires_grad).device
        self.w = layout.zeros(device)
        self.stats = torch.zeros(layout.stats_size, dtype=layout.dtype, device=device)
        named = dict(module.named_parameters())
        self.parameters = [named[entry.name] for entry in layout.parameters]
        formats = weight_formats(module) if channels_last else {}
        self._formats = [formats.get(entry.name, unchanged) for entry in layout.parameters]
        for view, parameter in zip(self.views(self.w), self.parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data, parameter.grad = view, None
        places = places_of_buffers(module)
        self._statistics = [(e.name, e.view(self.stats), *place) for e in layout.buffers for place in places[e.name]]
        for _, view, buffers, leaf in self._statistics:
            view.copy_(buffers[leaf])
            buffers[leaf] = view
        self.own = OwnBuffers(module, {entry.name for entry in layout.buffers}, device)
        self._homes = _homes(module, self.parameters)

    @cached_property
    def grad(self) -> Tensor:
        """[P] gradients, allocated at the first access."""
        return torch.zeros_like(self.w)

    @cached_property
    def _gradients(self) -> list[Tensor]:
        return self.views(self.grad)

    def load(self, w: Tensor, stats: Tensor) -> None:
        """Copy weights and statistics in."""
        self.w.copy_(w)
        self.stats.copy_(stats)
        for _, view, buffers, leaf in self._statistics:
            buffers[leaf] = view

    def release_weights(self) -> Tensor:
        """Return the weights [P] for the caller to change; the module's own are undefined until ``load``.

        Their new memory takes no room until it is written.
        """
        weights, self.w = self.w, torch.empty_like(self.w)
        self._point_at(self.w)
        return weights

    def drop_gradients(self) -> None:
        """Let all parameters have no gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Add the parameters' gradients to the flat one, and let them be views of it; a missing one stays None."""
        pairs = zip(self.parameters, self._gradients, strict=True)
        added = [(p, view) for p, view in pairs if p.grad is not None and p.grad is not view]
        if added:
            torch._foreach_add_([view for _, view in added], [parameter.grad for parameter, _ in added])
        for parameter, view in added:
            parameter.grad = view

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Take over gradients that a hook has replaced, or removed."""
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad)
                parameter.grad = view

    def use_gradients(self, nonzero: bool = False) -> None:
        """Let parameters without a gradient use their part of the flat one; with ``nonzero`` only if it is not zero."""
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is None and (not nonzero or view.any()):
                parameter.grad = view

    @torch.no_grad()
    def gather_statistics(self) -> None:
        """Copy statistics back if the module has assigned a new tensor instead of writing into the old one.

        Raises:
            TrainingError: The new tensor has another shape.
        """
        for name, view, buffers, leaf in self._statistics:
            buffer = buffers[leaf]
            if buffer is not view:
                if buffer is None or buffer.shape != view.shape:
                    shape = "None" if buffer is None else f"shape {tuple(buffer.shape)}"
                    raise TrainingError(
                        f"{type(self.module).__name__}: its buffer {name} became {shape}, and was {tuple(view.shape)}; "
                        "floating-point buffers are averaged over clients, so keep the shape"
                    )
                view.copy_(buffer)
                buffers[leaf] = view

    def check_parameters(self) -> None:
        """Refuse a trainable parameter that was replaced or frozen."""
        for entry, parameter, (owner, leaf) in zip(self.layout.parameters, self.parameters, self._homes, strict=True):
            address = self.w.data_ptr() + entry.offset * self.w.element_size()
            if owner.get(leaf) is not parameter or (entry.size and parameter.data_ptr() != address):
                raise TrainingError(
                    f"{type(self.module).__name__}: its parameter {entry.name} was replaced during training, and is no "
                    "longer trained; change its values in place: with torch.no_grad(): parameter.copy_(...)"
                )
            if not parameter.requires_grad:
                raise TrainingError(
                    f"{type(self.module).__name__}: its parameter {entry.name} was frozen during training; a "
                    "federation trains the same parameters in every round: freeze it in __init__"
                )

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return a vector [P] as tensors of the parameters' shapes, in flat order."""
        entries = self.layout.parameters
        parts = vector.split([entry.size for entry in entries])
        return [form(p.view(e.shape)) for p, e, form in zip(parts, entries, self._formats, strict=True)]

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient [P] of a loss as a new vector; ``grad`` is left unchanged."""
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    @contextmanager
    def at(self, vector: Tensor, stats: Tensor | None = None) -> Iterator[None]:
        """Context manager in which the module computes with another vector [P] instead of ``w``, without a copy.

        With ``stats`` [S] it also has these statistics, which training steps then change. A graph that was built
        outside may not be used inside, nor the reverse.
        """
        self._point_at(vector)
        if stats is not None:
            others = {entry.name: entry.view(stats) for entry in self.layout.buffers}
            for name, _, buffers, leaf in self._statistics:
                buffers[leaf] = others[name]
        try:
            yield
        finally:
            self._point_at(self.w)
            for _, view, buffers, leaf in self._statistics if stats is not None else ():
                buffers[leaf] = view

    def _point_at(self, vector: Tensor) -> None:
        for parameter, view in zip(self.parameters, self.views(vector), strict=True):
            parameter.data = view


def _homes(module: nn.Module, parameters: list[nn.Parameter]) -> list[tuple[dict[str, nn.Parameter], str]]:
    homes = {id(p): (part._parameters, leaf) for part in module.modules() for leaf, p in part._parameters.items()}
    return [homes[id(parameter)] for parameter in parameters]


def _check_parameters(name: str, trainable: list[tuple[str, nn.Parameter]], number: int) -> None:
    """Refuse parameters that do not fit one vector: none at all, of several dtypes, or of a wrong one."""
    if not trainable:
        frozen = f"all {number} are frozen (requires_grad=False)" if number else "it has none at all"
        raise ConfigError(f"{name} has no trainable parameters: {frozen}")
    dtypes = {p.dtype: parameter for parameter, p in reversed(trainable)}
    if len(dtypes) > 1:
        found = ", ".join(sorted(f"{dtype} ({parameter})" for dtype, parameter in dtypes.items()))
        raise ConfigError(f"{name}: expected one dtype, found {found}")
    (dtype,) = dtypes
    if dtype not in (torch.float32, torch.float64):
        fix = "train real and imaginary parts"
        if dtype.is_floating_point:
            fix = "half precision loses digits in means; leave half() out, or set --fabric.precision bf16-mixed"
        raise ConfigError(f"{name}: expected parameters of torch.float32 or torch.float64, found {dtype}: {fix}")


def _frozen(module: nn.Module) -> str:
    """Return a hash over the names and values of frozen parameters, "" if there are none."""
    digest = hashlib.sha256()
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    for name, parameter in frozen:
        digest.update(name.encode() + parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16] if frozen else ""


def _declared(module: nn.Module, attribute: str) -> set[str]:
    layers = module.named_modules()
    return {f"{prefix}.{name}".lstrip(".") for prefix, layer in layers for name in getattr(layer, attribute, ())}
