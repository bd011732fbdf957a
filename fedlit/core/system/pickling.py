"""Pickling of a user's objects, whose classes may be those of a script or a notebook."""

import importlib
import io
import sys
from functools import reduce
from types import CodeType, ModuleType
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
