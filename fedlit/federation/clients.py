"""The clients of a federation: which of the data's take part, with which weight and at which learning rate."""

import copy
from collections.abc import Sequence

from fedlit.core.errors import ConfigError
from fedlit.core.messages import Client
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.settings import Settings


def select_clients(data: FederatedDataModule, clients: Sequence[str] | None) -> FederatedDataModule:
    """Return the same data with some of its clients.

    Raises:
        ConfigError: There is no such client, or there is none in the list.
    """
    if clients is None:
        return data
    unknown = [name for name in clients if name not in data.clients]
    if unknown or not clients:
        raise ConfigError(
            f"clients: there is no {', '.join(map(repr, unknown)) or 'client in the list'}; clients are "
            f"{', '.join(data.clients)}"
        )
    part = copy.copy(data)
    part.clients = {name: data.clients[name] for name in data.clients if name in clients}
    return part


def participating_clients(
    data: FederatedDataModule, settings: Settings, everyone: FederatedDataModule
) -> dict[str, Client]:
    """Return what the federation knows of each client, by name.

    Args:
        data: The data of those that take part.
        settings: Their weights, and the factors of their learning rates.
        everyone: The data of all clients. A factor of one that does not take part now counts for nothing.

    Raises:
        ConfigError: There is no client, one has too few examples, or a factor is of no client.
    """
    if not data.clients:
        raise ConfigError(f"{type(data).__name__} has no clients after setup()")
    factors = settings.lr_factors or {}
    if unknown := [name for name in factors if name not in everyone.clients]:
        raise ConfigError(
            f"federation.lr_factors: there is no client {', '.join(map(repr, unknown))}; clients are "
            f"{', '.join(everyone.clients)}"
        )
    sizes = {name: len(d.train) for name, d in data.clients.items()}
    few = [f"{name!r} ({size})" for name, size in sizes.items() if size < min(2, data.batch_size)]
    if few:
        raise ConfigError(
            "a client needs at least 2 training samples, as BatchNorm refuses a batch of one; found less "
            f"at {', '.join(few)}: give them some, or remove them"
        )
    shares = sizes if settings.client_weights == "examples" else dict.fromkeys(sizes, 1)
    total = sum(shares.values())
    return {
        name: Client(name, d.classes, sizes[name], shares[name] / total, factors.get(name, 1.0))
        for name, d in data.clients.items()
    }
