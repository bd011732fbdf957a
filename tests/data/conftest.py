"""Fixtures of the tests of data."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _equal_pictures_hashed_once() -> Iterator[None]:
    """Hash equal pictures once: a hash takes a millisecond, and most tests read the same pictures of noise."""
    from fedlit.data.pictures import decoding, store
    from fedlit.data.pictures.hashes import perceptual_hashes

    hashed = cache(lambda content, shape: perceptual_hashes(np.frombuffer(content, np.uint8).reshape(shape)))
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoding, store):
            patch.setattr(
                module, "perceptual_hashes", lambda pictures: hashed(np.asarray(pictures).tobytes(), pictures.shape)
            )
        yield
