"""Measure the time for 5,000 PhantomCXR images of 64 x 64: `python tests/benchmarks/phantom_speed.py`."""

import time

import numpy as np

from fedlit.data.phantom import default_hospitals, render, sample_cohort


def seconds(images: int = 5000, size: int = 64) -> float:
    """Return the seconds to draw patients and images of three hospitals, without any file."""
    start = time.perf_counter()
    for hospital in default_hospitals(3, images):
        render(hospital, sample_cohort(hospital, 0), size, 0)
    return time.perf_counter() - start


if __name__ == "__main__":
    times = [seconds() for _ in range(5)]
    print(
        f"5,000 images of 64 x 64, one thread: median {np.median(times):.2f} s "
        f"of {len(times)} ({min(times):.2f} to {max(times):.2f} s)"
    )
