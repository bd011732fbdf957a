"""Clients whose data sets are given in Python."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientData
from fedlit.data.clients import distinct_names
from fedlit.data.federated import FederatedDataModule

EXAMPLE = "{'north': (train, val, test), 'south': (train, val)}"

NO_DATA_SETS = {
    DataLoader: "give its data set (loader.dataset); batch_size says how large batches are",
    (Tensor, np.ndarray): "torch.utils.data.TensorDataset(images, labels) makes a data set of tensors",
    Mapping: "training, validation and test set are a tuple; data sets that were given to fedlit.fit are in no YAML, and "
    "what it has returned tests and predicts",
    (IterableDataset, str, type): "an example is asked for by its index, in any order",
}
"""What people give in the place of a data set, and what to do instead."""


class GivenClients(FederatedDataModule):
    """Clients whose data sets are given in Python.

    Args:
        clients: The data of each client by its name: a map-style data set to train on, a tuple of data sets for training,
            validation and test, of which the last two may be missing or None, or a ``ClientData``.
        classes: Names of the classes that each client labels, unless its ``ClientData`` says otherwise.
        test_sets: Test sets that no client has, by name.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of validation, test and prediction.

    Raises:
        ConfigError: There are no clients, two have the same name, or what one has is no data set.
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
        self.clients = {name: self._data(name, given) for name, given in _named("clients", clients).items()}
        if not self.clients:
            raise ConfigError(f"clients: expected at least one, such as {EXAMPLE}; found none")
        named = _named("test_sets", test_sets or {})
        if "federation" in named:
            raise ConfigError(
                "test_sets: 'federation' is the name of the test images of all clients together; give this one another"
            )
        self.test_sets = {name: data_set(f"test set {name!r}", given) for name, given in named.items()}

    def setup(self, stage: str | None = None) -> None:
        """Do nothing: everything is there."""

    def _data(self, name: str, given: Any) -> ClientData:
        if isinstance(given, ClientData):
            parts, classes = (given.train, given.val, given.test), given.classes
        else:
            parts, classes = given if isinstance(given, tuple) else (given,), self.classes
        where = f"client {name!r}"
        if not 1 <= len(parts) <= 3 or parts[0] is None:
            raise ConfigError(
                f"{where}: expected a data set, or a tuple of training, validation and test set; found a tuple of "
                f"{len(parts)}{' without a training set' * (len(parts) in (1, 2, 3))}"
            )
        if unknown := [label for label in classes if label not in self.classes]:
            raise ConfigError(f"{where}: labels {unknown[0]!r}, which is none of the model's classes {self.classes}")
        splits = [
            None if part is None else data_set(f"{where}, {split}", part)
            for split, part in zip(("training", "validation", "test"), (*parts, None, None), strict=False)
        ]
        return ClientData(name, tuple(classes), *splits)


def _named(key: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        hint = ": give each a name" if isinstance(given, (list, tuple)) else ""
        raise ConfigError(f"{key}: expected a dict such as {EXAMPLE}, found a {type(given).__name__}{hint}")
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ConfigError(f"{key}: expected names that are texts, found {wrong[0]!r}; write '{wrong[0]}'")
    distinct_names(given)
    return dict(given)


def data_set(where: str, given: Any) -> Dataset:
    """Give what was given, where it is a data set that gives an example for an index.

    Args:
        where: What the data are, for the error.
        given: The data set.

    Raises:
        ConfigError: It is something else, or empty.
    """
    lacking = [method for method in ("__len__", "__getitem__") if not hasattr(type(given), method)]
    hint = next((hint for kinds, hint in NO_DATA_SETS.items() if isinstance(given, kinds)), "")
    if not hint and lacking:
        hint = f"it has no {lacking[0]}"
    if not hint and isinstance(given, list) and given and isinstance(given[0], Dataset):
        hint = "training, validation and test set are a tuple: (train, val, test)"
    if hint:
        raise ConfigError(
            f"{where}: expected a data set with __len__ and __getitem__, found a {type(given).__name__}; {hint}"
        )
    if len(given) == 0:
        raise ConfigError(f"{where}: the data set is empty; leave it out, or give it examples")
    return given
