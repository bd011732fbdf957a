"""The YAML files that come with fedlit, which a command finds from any folder."""

from collections.abc import Iterator, Sequence

from fedlit.core.system.shipped import placed


def with_shipped(argv: Sequence[str]) -> list[str]:
    """Return a command line in which ``--config`` names files that exist.

    A local file wins over one of fedlit's, whose name may begin with ``configs/`` as in the source tree.
    """
    return list(_found(argv))


def _found(argv: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in argv:
        flag, equals, value = word.partition("=")
        if before in ("-c", "--config"):
            yield placed(word)
        elif equals and flag in ("-c", "--config"):
            yield f"{flag}={placed(value)}"
        else:
            yield word
        before = word
