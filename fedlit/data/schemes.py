"""Label schemes: which client labels which classes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedlit.core.randomness import numpy_generator
from fedlit.data.labels import checked_classes
from fedlit.data.records import listed

KINDS = {"shared": "shared", "partly": "partly shared", "unique": "unique"}
"""Kinds of classes, and their names in a sentence: all clients label a shared class, one alone a unique one."""


class LabelScheme:
    """A rule that says which classes each client labels; labels of other classes are hidden from its training.

    They are hidden from its validation too. A client never labels more than its source does. Test sets keep all labels.
    """

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each client, as a pure function of the arguments.

        A client that is left out labels what its source does.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement classes_of()")


class HideClasses(LabelScheme):
    """All clients label the shared classes, and each other class is labelled by one client alone, in turn.

    This is the class heterogeneity of Kulkarni et al. (arXiv:2301.06683), section 4.2.1, where four clients share 0, 2,
    6, 10, 12, 13 or all of 14 classes. The shared classes are drawn from the seed, and a smaller set of them is part of
    each larger one.

    Args:
        shared: Number of classes that all clients label, from 0 to the number of classes.
    """

    def __init__(self, shared: int):
        if shared < 0:
            raise ValueError(f"HideClasses.shared: expected at least 0, found {shared}")
        self.shared = shared

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each client.

        Raises:
            ValueError: There are fewer classes than shared ones, or a client would label no class.
        """
        if self.shared > len(classes):
            raise ValueError(f"HideClasses(shared={self.shared}): expected at most {len(classes)} classes")
        order = numpy_generator(seed, "HideClasses").permutation(len(classes))
        shared, others = set(order[: self.shared].tolist()), order[self.shared :][::-1].tolist()
        owner = {column: clients[turn % len(clients)] for turn, column in enumerate(others)}
        schemes = {
            client: tuple(name for i, name in enumerate(classes) if i in shared or owner.get(i) == client)
            for client in clients
        }
        empty = [client for client, labelled in schemes.items() if not labelled]
        if empty:
            raise ValueError(
                f"HideClasses(shared={self.shared}): {len(classes)} classes are too few for {len(clients)} clients: "
                f"{listed(empty)} would label none. Share some, or choose fewer clients."
            )
        return schemes


class DeclaredClasses(LabelScheme):
    """The classes of each client as given.

    Args:
        clients: A map from clients to the names of the classes that they label. Clients that are left out label what
            their source labels.
    """

    def __init__(self, clients: dict[str, list[str]]):
        self.clients = clients

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each client that is named.

        Raises:
            ValueError: A client or class is unknown, or a client has no class or one class twice.
        """
        unknown = [name for name in self.clients if name not in clients]
        if unknown:
            raise ValueError(f"data.scheme: unknown client {unknown[0]!r}; clients are {listed(clients, 20)}")
        for client, labelled in self.clients.items():
            checked_classes(labelled, classes, f"data.scheme: client {client!r}")
        return {client: tuple(n for n in classes if n in labelled) for client, labelled in self.clients.items()}


def by_sharing(schemes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the classes that all clients label (``shared``), some of them (``partly``) or one alone (``unique``).

    The kinds are those of Kulkarni et al. (arXiv:2301.06683), definition 2. If all classes are shared, the result is
    empty.
    """
    count = Counter(name for labelled in schemes.values() for name in labelled)
    kinds = {name: "shared" if n == len(schemes) else "unique" if n == 1 else "partly" for name, n in count.items()}
    if set(kinds.values()) <= {"shared"}:
        return {}
    return {kind: tuple(n for n, k in kinds.items() if k == kind) for kind in KINDS}
