"""``python -m fedlit``, ``torchrun -m fedlit``, ``fabric run fedlit/__main__.py``."""

from fedlit.cli import main

if __name__ == "__main__":
    main()
