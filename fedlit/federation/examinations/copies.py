"""Checks of properties that a copy of a module would lack; each process trains a copy, with one weight vector."""

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from io import IOBase
from types import FunctionType, MethodType
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.federation.examinations.attributes import OTHERS
from fedlit.federation.examinations.examination import Examination

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Hooks of layers that take part in training."""

CONTAINERS = (list, tuple, set, frozenset, Mapping)
LIBRARIES = ("torch", "torchmetrics", "lightning", "fedlit")
"""Packages whose layers create their functions again when they are copied."""


class FunctionsOfTheModule(Examination[LightningModule]):
    """No function of the module refers to it by a variable, because a copy's function would refer to the original."""

    name = "closures"
    advice = "make it a method of the class (a hook may be one), or a layer"

    def problem(self, module: LightningModule) -> str:
        """Name the function and the variable."""
        held = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
        held.update(id(value) for part in module.modules() for _, value in _attributes(part) if _is_mutable(value))
        for prefix, part in module.named_modules():
            own_copy = type(part).__setstate__ is not nn.Module.__setstate__ or hasattr(part, "__deepcopy__")
            if own_copy or isinstance(part, Metric):
                continue
            hooks = [(hooks[1:], getattr(part, hooks).values()) for hooks in HOOKS]
            for name, value in (*_attributes(part), *hooks):
                if variable := _refers(value, held):
                    return (
                        f"{_path(module, prefix, name)} has a function or a reference that leads back to the module "
                        f"({variable}); in the copy that a process trains, it would still lead to the original: "
                        f"{self.advice}"
                    )
        return ""


class Iterators(Examination[LightningModule]):
    """No attribute of the module is an iterator, because its position would advance only in one process."""

    name = "iterators"
    advice = "compute what the step needs from self.global_step or batch_idx"

    def problem(self, module: LightningModule) -> str:
        """Name the attribute with the iterator."""
        for prefix, part in module.named_modules():
            for name, value in _attributes(part):
                if hasattr(type(value), "__next__") and not isinstance(value, IOBase):
                    return (
                        f"{_path(module, prefix, name)} is an iterator ({type(value).__name__}), and no client could "
                        f"keep its position: {self.advice}"
                    )
        return ""


class SharedMemory(Examination[LightningModule]):
    """No trained parameter or buffer shares memory with another tensor, because its copy would not."""

    name = "shared memory"
    advice = "assign the one parameter to both places instead of its data, or clone() it"

    def problem(self, module: LightningModule) -> str:
        """Name both tensors, or the one whose elements share memory."""
        spans: dict[int, list[tuple[int, int, str, bool]]] = {}
        for name, tensor, travels in _tensors(module):
            if not tensor.numel() or tensor.is_meta:
                continue
            length = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            if travels and length < tensor.numel():
                kind = type(module).__name__
                return f"{kind}: elements of its {name} share memory, as after expand(); clone() it"
            start, others = tensor.data_ptr(), spans.setdefault(tensor.untyped_storage().data_ptr(), [])
            stop = start + length * tensor.element_size()
            for other_start, other_stop, other, other_travels in others:
                if start < other_stop and other_start < stop and (travels or other_travels):
                    return (
                        f"{type(module).__name__}: its {_both_names(other, name)} share memory, which training would "
                        f"separate; {self.advice}"
                    )
            others.append((start, stop, name, travels))
        return ""


def _path(module: LightningModule, prefix: str, name: str) -> str:
    return ".".join(filter(None, (type(module).__name__, prefix, name)))


def _both_names(first: str, second: str) -> str:
    """Join two names, such as ``parameter a`` and ``parameter b``; the same kind is named only once."""
    (kind, one), (other_kind, other) = first.split(" ", 1), second.split(" ", 1)
    return f"{kind}s {one} and {other}" if kind == other_kind else f"{kind} {one} and {other_kind} {other}"


def _tensors(module: LightningModule) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield name, tensor and whether training changes it, for each parameter, buffer and tensor in an attribute."""
    seen: set[int] = set()
    for name, parameter in module.named_parameters():
        seen.add(id(parameter))
        yield f"parameter {name}", parameter, parameter.requires_grad
    for name, buffer in module.named_buffers():
        yield f"buffer {name}", buffer, True
    for prefix, part in module.named_modules():
        for name, value in _attributes(part):
            plain = torch.is_tensor(value) and value.layout is torch.strided and id(value) not in seen
            if plain and not type(part).__module__.startswith("torch."):
                yield f"attribute {f'{prefix}.{name}'.lstrip('.')}", value, False


def _attributes(part: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(part).items() if name not in OTHERS]


def _is_mutable(value: Any) -> bool:
    """Check if a function could read training state from the value."""
    return isinstance(value, (list, dict, set, Tensor)) or (hasattr(value, "__dict__") and not callable(value))


def _refers(value: Any, held: set[int], depth: int = 3) -> str:
    """Describe how a function, or a container of functions, refers to an object in ``held``; "" if it does not."""
    if isinstance(value, weakref.ref):
        return "a weak reference" if id(value()) in held else ""
    if not depth or not isinstance(value, (FunctionType, partial, *CONTAINERS, type({}.values()))):
        return ""
    if isinstance(value, partial):
        return _refers(value.func, held, depth - 1)
    if not isinstance(value, FunctionType):
        items = value.values() if isinstance(value, Mapping) else value
        return next(filter(None, (_refers(item, held, depth - 1) for item in items)), "")
    if (value.__module__ or "").split(".")[0] in LIBRARIES:
        return ""
    variables = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    held_by = [(f"its variable {name}", _content(cell)) for name, cell in variables]
    for name, content in (*held_by, *(("a default", default) for default in defaults)):
        owner = content.__self__ if isinstance(content, MethodType) else content
        if id(owner) in held:
            return name
        items = content.values() if isinstance(content, Mapping) else content if isinstance(content, CONTAINERS) else ()
        if any(id(item) in held for item in items) or _refers(content, held, depth - 1):
            return name
    return ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return None
