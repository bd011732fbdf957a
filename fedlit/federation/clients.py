"""Selection of the clients that take part, with their weights and learning-rate factors."""

import copy
from collections.abc import Sequence

from fedlit.core.errors import ConfigError
from fedlit.core.messages import Client
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.settings import Settings


def select_clients(data: FederatedDataModule, clients: Sequence[str] | None) -> FederatedDataModule:
    """Return the data restricted to some of the clients.

    Raises:
        ConfigError: A client does not exist, or the list is empty.
    """
    if clients is None:
        return data
    unknown = [name for name in clients if name not in data.clients]
    if unknown or not clients:
        raise ConfigError(
            f"federation.clients: expected names among {', '.join(data.clients)}, found "
            f"{', '.join(map(repr, map(str, unknown))) or 'an empty list'}"
        )
    part = copy.copy(data)
    part.clients = {name: data.clients[name] for name in data.clients if name in clients}
    return part


def participating_clients(
    data: FederatedDataModule, settings: Settings, everyone: FederatedDataModule
) -> dict[str, Client]:
    """Return the clients that take part, by name; factors of other clients of ``everyone`` are allowed and ignored.

    Raises:
        ConfigError: There are no clients, a client has too few examples, or a factor names an unknown client.
    """
    if not data.clients:
        raise ConfigError(f"{type(data).__name__}: expected clients by setup(), found none")
    factors = settings.lr_factors or {}
    if unknown := [name for name in factors if name not in everyone.clients]:
        raise ConfigError(
            f"federation.lr_factors: expected names among {', '.join(everyone.clients)}, found "
            f"{', '.join(map(repr, map(str, unknown)))}"
        )
    sizes = {name: len(d.train) for name, d in data.clients.items()}
    few = [f"{name!r} ({size})" for name, size in sizes.items() if size < min(2, data.batch_size)]
    if few:
        raise ConfigError(
            "clients: expected at least 2 training samples per client, as BatchNorm fails on a batch of one, found "
            f"fewer at {', '.join(few)}; add samples, or remove these clients"
        )
    shares = sizes if settings.client_weights == "examples" else dict.fromkeys(sizes, 1)
    total = sum(shares.values())
    return {
        name: Client(name, d.classes, sizes[name], shares[name] / total, factors.get(name, 1.0))
        for name, d in data.clients.items()
    }
