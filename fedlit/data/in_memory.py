"""Clients whose data sets are Python objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedlit.core.errors import ConfigError
from fedlit.core.examples import MapDataset
from fedlit.core.messages import ClientData
from fedlit.data.clients import distinct_names
from fedlit.data.federated import FederatedDataModule

EXAMPLE = "{'north': (train, val, test), 'south': (train, val)}"

NO_DATA_SETS: dict[Any, str] = {
    DataLoader: "give its data set (loader.dataset), and set batch_size",
    (Tensor, np.ndarray): "make a data set of tensors with torch.utils.data.TensorDataset(images, labels)",
    Mapping: "training, validation and test set are a tuple; a YAML cannot hold data sets that were given to "
    "fedlit.fit, so test and predict with the object that it returns",
    (IterableDataset, str, type): "an example is asked for by its index, in any order",
}
"""Types that are not data sets, and advice for each."""


class GivenClients(FederatedDataModule):
    """Clients whose data sets are Python objects.

    Args:
        clients: The data of each client by name: a map-style training set, a tuple of data sets for training,
            validation and test, of which the last two may be missing or None, or a ``ClientData``.
        classes: Names of the classes that each client labels, unless its ``ClientData`` says otherwise.
        test_sets: Test sets that no client has, by name.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of validation, test and prediction.

    Raises:
        ConfigError: There are no clients, two have the same name, or the value of one is not a data set.
    """

    def __init__(
        self,
        clients: dict[str, Any],
        classes: Sequence[str] = (),
        test_sets: dict[str, Any] | None = None,
        batch_size: int = 32,
        eval_batch_size: int = 128,
    ) -> None:
        super().__init__(None, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.classes = classes
        self.clients = {name: self._data(name, value) for name, value in _named("clients", clients).items()}
        if not self.clients:
            raise ConfigError(f"clients: expected at least one, such as {EXAMPLE}; found none")
        named = _named("test_sets", test_sets or {})
        if "federation" in named:
            raise ConfigError(
                "test_sets: 'federation' is the name of the test images of all clients together; choose another name"
            )
        self.test_sets = {name: data_set(f"test set {name!r}", value) for name, value in named.items()}

    def setup(self, stage: str | None = None) -> None:
        """Do nothing: the data sets exist already."""

    def _data(self, name: str, value: Any) -> ClientData:
        if isinstance(value, ClientData):
            parts, classes = (value.train, value.val, value.test), value.classes
        else:
            parts, classes = value if isinstance(value, tuple) else (value,), self.classes
        where = f"client {name!r}"
        if not 1 <= len(parts) <= 3 or parts[0] is None:
            raise ConfigError(
                f"{where}: expected a data set, or a tuple of training, validation and test set; found a tuple of "
                f"{len(parts)}{' without a training set' * (len(parts) in (1, 2, 3))}"
            )
        if unknown := [str(label) for label in classes if label not in self.classes]:
            raise ConfigError(f"{where}: expected classes of the model, {self.classes}, found {unknown[0]!r}")
        train, *others = (
            None if part is None else data_set(f"{where}, {split}", part)
            for split, part in zip(("training", "validation", "test"), (*parts, None, None), strict=False)
        )
        assert train is not None  # refused above
        return ClientData(name, tuple(classes), train, *others)


def _named(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        hint = ": give each a name" if isinstance(value, (list, tuple)) else ""
        raise ConfigError(f"{key}: expected a dict such as {EXAMPLE}, not {type(value).__name__}{hint}")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise ConfigError(f"{key}: expected names that are texts, found {wrong[0]}; write '{wrong[0]}'")
    named = {str(name): data for name, data in value.items()}  # a NumPy text is a str
    distinct_names(named)
    return named


def data_set(where: str, value: Any) -> MapDataset:
    """Return the value after checking that it is a map-style data set.

    Args:
        where: Name of the data in an error.
        value: The data set.

    Raises:
        ConfigError: The value is not a map-style data set, or is empty.
    """
    lacking = [method for method in ("__len__", "__getitem__") if not hasattr(type(value), method)]
    hint = next((hint for kinds, hint in NO_DATA_SETS.items() if isinstance(value, kinds)), "")
    if not hint and lacking:
        hint = f"it has no {lacking[0]}"
    if not hint and isinstance(value, list) and value and isinstance(value[0], Dataset):
        hint = "training, validation and test set are a tuple: (train, val, test)"
    if hint:
        raise ConfigError(
            f"{where}: expected a data set with __len__ and __getitem__, found a {type(value).__name__}; {hint}"
        )
    if len(value) == 0:
        raise ConfigError(f"{where}: the data set is empty; remove it, or add examples")
    return value
