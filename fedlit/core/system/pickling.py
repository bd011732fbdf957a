"""Pickling of a user's objects, whose classes may be those of a script or a notebook."""

import importlib
import io
import pickle
import sys
from functools import reduce
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch

OPERATORS = (type(torch.ops.aten.relu), type(torch.ops.aten.relu.default))
"""Types of PyTorch's operators, and of one form of them."""


class Pickler(cloudpickle.CloudPickler):
    """Pickler that stores the modules that libraries replace, such as ``torch.ops``, by name like all others.

    A class of a script is stored with every loaded submodule whose name its methods use as an attribute: a method with
    ``self.classes`` and ``torch.nn`` needs ``torch.classes``, which is no plain module and cannot be stored by value.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return the function and the arguments that give the object, or NotImplemented for the default."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            parent, _, name = obj.__name__.rpartition(".")
            if sys.modules.get(obj.__name__) is obj:
                return importlib.import_module, (obj.__name__,)
            if getattr(sys.modules.get(parent), name, None) is obj:
                return getattr, (sys.modules[parent], name)
        if isinstance(obj, CodeType):  # cloudpickle leaves out the file, which the errors of a worker name
            make, arguments = self.dispatch_table[CodeType](obj)
            return make, tuple(obj.co_filename if each == "<dynamic-code>" else each for each in arguments)
        if isinstance(obj, OPERATORS):
            *path, name = str(obj).split(".")
            return getattr, (reduce(getattr, path, torch.ops), name)
        return super().reducer_override(obj)


def dumps(obj: Any) -> bytes:
    """Return an object as bytes, from which ``pickle.loads`` makes an independent copy in this or another process."""
    file = io.BytesIO()
    Pickler(file).dump(obj)
    return file.getvalue()


class _Copier(Pickler):
    """Pickler of a copy within one process, which has the classes, modules and plain functions of the original.

    cloudpickle alone would give a class of a script new methods, even the original's, which no longer see its globals.
    Tensors that share memory share it in the copy too.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.held: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> tuple[int, torch.dtype | None] | None:
        """Return a reference to what is not pickled: the same object, or a copy of the memory of a tensor."""
        if isinstance(obj, torch.storage.TypedStorage):
            memory = obj._untyped_storage
            if memory._cdata not in self.held:
                self.held[memory._cdata] = memory.clone()
            return memory._cdata, obj.dtype
        plain = isinstance(obj, FunctionType) and not (obj.__closure__ or obj.__defaults__ or obj.__kwdefaults__)
        if plain or isinstance(obj, (type, ModuleType)):
            self.held[id(obj)] = obj
            return id(obj), None
        return None


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: dict[int, Any]) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, reference: tuple[int, torch.dtype | None]) -> Any:
        """Return what is not pickled."""
        key, dtype = reference
        held = self._held[key]
        return held if dtype is None else torch.storage.TypedStorage(wrap_storage=held, dtype=dtype, _internal=True)


def copied(obj: Any) -> Any:
    """Return a copy of an object for this process; functions that refer to a part of it refer to that of the copy."""
    file = io.BytesIO()
    copier = _Copier(file)
    copier.dump(obj)
    file.seek(0)
    return _Reader(file, copier.held).load()
