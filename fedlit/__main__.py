"""Entry point of ``python -m fedlit``, ``torchrun -m fedlit`` and ``fabric run fedlit/__main__.py``."""

import sys
from pathlib import Path

if Path(sys.path[0]) == Path(__file__).parent:
    # Started by path: fedlit's modules (``data``, ``models``, ...) must not be importable as top-level ones.
    del sys.path[0]

from fedlit.cli.main import run

if __name__ == "__main__":
    run()
