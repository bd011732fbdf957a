"""What a reproduction is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console


@dataclass
class Reproduction:
    """A paper's figure or table.

    Args:
        root: folder of the data that are not built in.
        scale: ``laptop``, minutes on two cores, or ``paper``, the paper's own settings.
        seeds: of the runs; every arm has the same.
        jobs: runs side by side.
        output: figure and tables go to OUTPUT/NAME/.
        run_dir: runs go to RUN_DIR/EXPERIMENT/; what is finished there is not run again.
    """

    root: Path | None = None
    scale: Literal["laptop", "paper"] = "laptop"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    jobs: int = 2
    output: Path = Path("reproductions")
    run_dir: Path = Path("runs")

    def run(self, console: Console) -> None:
        """Run what is missing, write figure and tables, and say where they are."""
        raise NotImplementedError
