"""Label schemes: which client labels which classes."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from fedlit.data.labels import near
from fedlit.data.records import listed

KINDS = {"shared": "shared", "partly": "partly shared", "unique": "unique"}
"""Classes that all clients label, some, or one alone; and what people call them."""


class LabelScheme:
    """Says what each client labels, by name; what it does not label is hidden from its training and validation.

    A client never labels more than its source does. Test sets keep the full truth.
    """

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """The classes of each client; one that is left out labels what its source does. A pure function."""
        raise NotImplementedError(f"{type(self).__name__} does not implement classes_of()")


class HideClasses(LabelScheme):
    """All clients label the shared classes; each other class is labelled by one client alone, dealt in turn.

    The class heterogeneity of Kulkarni et al. (arXiv:2301.06683), section 4.2.1, where 0, 2, 6, 10, 12, 13 or all of
    14 classes are shared by four clients; which ones is drawn from the seed. For a growing number of shared classes the
    smaller set is part of the larger one.

    Args:
        shared: Number of classes that all clients label.
    """

    def __init__(self, shared: int):
        if shared < 0:
            raise ValueError(f"HideClasses.shared: expected at least 0, found {shared}")
        self.shared = shared

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        if self.shared > len(classes):
            raise ValueError(f"HideClasses(shared={self.shared}): expected at most {len(classes)} classes")
        order = np.random.default_rng([seed, zlib.crc32(b"HideClasses")]).permutation(len(classes))
        shared, others = set(order[: self.shared].tolist()), order[self.shared :][::-1].tolist()
        owner = {column: clients[turn % len(clients)] for turn, column in enumerate(others)}
        found = {
            client: tuple(name for i, name in enumerate(classes) if i in shared or owner.get(i) == client)
            for client in clients
        }
        empty = [client for client, own in found.items() if not own]
        if empty:
            raise ValueError(
                f"HideClasses(shared={self.shared}): {len(classes)} classes are too few for {len(clients)} clients: "
                f"{listed(empty)} would label none. Share some, or choose fewer clients."
            )
        return found


class DeclaredClasses(LabelScheme):
    """What each client labels, written down by hand.

    Args:
        clients: Client, and the names of the classes that it labels; clients left out label what their source does.
    """

    def __init__(self, clients: dict[str, list[str]]):
        self.clients = clients

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        unknown = [name for name in self.clients if name not in clients]
        if unknown:
            raise ValueError(f"data.scheme: unknown client {unknown[0]!r}; clients are {listed(clients, 20)}")
        for client, own in self.clients.items():
            for label in own:
                if label not in classes:
                    raise ValueError(f"data.scheme: client {client!r}: unknown class {label!r}; {near(label, classes)}")
            if len(set(own)) < len(own) or not own:
                raise ValueError(f"data.scheme: client {client!r}: expected one or more different classes, found {own}")
        return {client: tuple(name for name in classes if name in own) for client, own in self.clients.items()}


def by_sharing(schemes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Classes that all clients label (``shared``), some (``partly``) or one alone (``unique``); {} where all are shared.

    Kulkarni et al. (arXiv:2301.06683), definition 2.
    """
    count: dict[str, int] = {}
    for own in schemes.values():
        for name in own:
            count[name] = count.get(name, 0) + 1
    kinds = {name: "shared" if n == len(schemes) else "unique" if n == 1 else "partly" for name, n in count.items()}
    if set(kinds.values()) <= {"shared"}:
        return {}
    return {kind: tuple(n for n, k in kinds.items() if k == kind) for kind in KINDS}
