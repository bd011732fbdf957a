"""The YAML files that come with fedlit, which a command finds from any folder."""

import os
from collections.abc import Iterator, Sequence

from fedlit.core.system.shipped import CONFIGS


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
            yield _place(word)
        elif equals and flag in ("-c", "--config"):
            yield f"{flag}={_place(value)}"
        else:
            yield word
        before = word


def _place(name: str) -> str:
    shipped = str(CONFIGS / name.removeprefix("configs/"))
    # These two answer a text of YAML, which is no name of a file and may be too long for one, with False.
    return shipped if not os.path.exists(name) and os.path.isfile(shipped) else name
