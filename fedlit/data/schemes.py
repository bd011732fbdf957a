"""Label schemes: rules for the classes that each client labels."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedlit.core.errors import DataError
from fedlit.core.ranges import NonNegativeInt
from fedlit.core.seeds import numpy_generator
from fedlit.core.system.argument_types import Checked
from fedlit.data.labels import checked_classes
from fedlit.data.records import listed

KINDS = {"shared": "shared", "partly": "partly shared", "unique": "unique"}
"""Kinds of classes, and their names in a sentence. All clients label a shared class, a single one a unique class."""


class LabelScheme(Checked):
    """A rule for the classes that each client labels.

    Labels of other classes are hidden from the client's training and validation. Test sets keep all labels. A client
    never labels more classes than its source.
    """

    mistake = DataError

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each client, as a pure function of the arguments.

        A client that is not in the result labels the classes of its source.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement classes_of()")


class HideClasses(LabelScheme):
    """Classes that all clients label, unique classes that one client labels, and classes that some clients label.

    This is the class heterogeneity of Kulkarni et al. (arXiv:2301.06683), definition 2 and section 4.2.1. In the text,
    four clients share 0, 2, 6, 10, 12, 13 or all of 14 classes; set only ``shared`` for this, so that all other classes
    are unique. The authors' released code (UM2ii/SurgicalAggregation, ``configs/exp1``) has these numbers for the
    unique classes (shared 14, 12, 8, 4, 2, 1, 0). Where the number of clients varies, it has explicit sets: 2, 3, 4, 5,
    6, 8 and 10 clients share 4, 6, 4, 2, 0, 0 and 0 classes, 10, 6, 5, 3, 4, 3 and 2 classes are unique, and two or
    more clients label each of the rest. This class draws sets with these numbers.

    The shared classes are drawn from the seed, and a smaller set is a part of each larger one. Unique classes are dealt
    in turn. Each other class is labelled by 2 to K // 2 + 1 of K clients. The number is drawn, and the clients are
    those with the fewest classes so far.

    Args:
        shared: Number of classes that all clients label, from 0 to the number of classes.
        unique: Number of classes that a single client labels. By default all that are not shared.
    """

    def __init__(self, shared: NonNegativeInt, unique: NonNegativeInt | None = None):
        self.shared, self.unique = shared, unique

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each client.

        Raises:
            DataError: There are fewer classes than shared and unique ones, there are too few clients for classes that
                are neither, or a client would label no class.
        """
        where = f"HideClasses(shared={self.shared}{'' if self.unique is None else f', unique={self.unique}'})"
        if self.shared + (self.unique or 0) > len(classes):
            raise DataError(f"{where}: expected at most {len(classes)} classes")
        rng = numpy_generator(seed, "HideClasses")
        order = rng.permutation(len(classes))
        shared, others = order[: self.shared].tolist(), order[self.shared :][::-1].tolist()
        unique = len(others) if self.unique is None else self.unique
        if len(clients) < 3 and unique < len(others):
            raise DataError(
                f"{where}: {len(others) - unique} of {len(classes)} classes are neither shared nor unique; expected at "
                f"least 3 clients for them, found {len(clients)}"
            )
        labelled: dict[str, set[int]] = {client: set(shared) for client in clients}
        for turn, column in enumerate(others[:unique]):
            labelled[clients[turn % len(clients)]].add(column)
        for column in others[unique:]:
            number = int(rng.integers(2, len(clients) // 2 + 2))
            fewest = sorted(rng.permutation(len(clients)).tolist(), key=lambda i: len(labelled[clients[i]]))
            for i in fewest[:number]:
                labelled[clients[i]].add(column)
        schemes = {client: tuple(name for i, name in enumerate(classes) if i in labelled[client]) for client in clients}
        empty = [client for client, labels in schemes.items() if not labels]
        if empty:
            raise DataError(
                f"{where}: {len(classes)} classes are too few for {len(clients)} clients: {listed(empty)} would label "
                "no class. Raise shared, or choose fewer clients."
            )
        return schemes


class DeclaredClasses(LabelScheme):
    """An explicit list of classes for each client.

    Args:
        clients: A map from clients to the names of the classes that they label. Other clients label the classes of
            their source.
    """

    def __init__(self, clients: dict[str, list[str]]):
        self.clients = clients

    def classes_of(self, clients: Sequence[str], classes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
        """Return the classes of each declared client.

        Raises:
            DataError: A client or class is unknown, or a client has no class or repeats a class.
        """
        unknown = [name for name in self.clients if name not in clients]
        if unknown:
            raise DataError(f"data.scheme: unknown client {unknown[0]!r}; clients are {listed(clients, 20)}")
        for client, labelled in self.clients.items():
            checked_classes(labelled, classes, f"data.scheme: client {client!r}")
        return {client: tuple(n for n in classes if n in labelled) for client, labelled in self.clients.items()}


def by_sharing(schemes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the classes that all clients label (``shared``), some of them (``partly``) or a single one (``unique``).

    The kinds are those of Kulkarni et al. (arXiv:2301.06683), definition 2. If all classes are shared, the result is
    empty.
    """
    count = Counter(name for labelled in schemes.values() for name in labelled)
    kinds = {name: "shared" if n == len(schemes) else "unique" if n == 1 else "partly" for name, n in count.items()}
    if set(kinds.values()) <= {"shared"}:
        return {}
    return {kind: tuple(n for n, k in kinds.items() if k == kind) for kind in KINDS}
