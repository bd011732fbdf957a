"""What a reproduction is."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rich.console import Console


@dataclass
class Reproduction:
    """A paper's figure or table.

    Args:
        root: folder of the data that are not built in.
        scale: ``laptop``, minutes on two cores, or ``paper``, the paper's own settings.
        seeds: of the runs; every arm has the same. By default three, for surgical-tables one.
        jobs: runs side by side.
        output: figure and tables go to OUTPUT/NAME/.
        run_dir: runs go to RUN_DIR/EXPERIMENT/; what is finished there is not run again.
    """

    root: Path | None = None
    scale: Literal["laptop", "paper"] = "laptop"
    seeds: list[int] | None = None
    jobs: int = 2
    output: Path = Path("reproductions")
    run_dir: Path = Path("runs")

    usual_seeds: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def __post_init__(self) -> None:
        self.seeds = list(self.usual_seeds) if self.seeds is None else self.seeds

    def run(self, console: Console) -> None:
        """Run what is missing, write figure and tables, and say where they are."""
        raise NotImplementedError
