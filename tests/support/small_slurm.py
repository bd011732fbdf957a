"""Commands named sbatch, squeue, scancel and scontrol that keep a queue in a folder; the test plays the nodes."""

import json
import os
import re
from pathlib import Path

from sweeps import GRID

SWEEP = {**GRID, "seeds": [0], "run_dir": "runs"}
NAMES = ["fedavg,lr=0.1,seed=0", "scaffold,lr=0.1,seed=0"]
"""A sweep and the names of its runs."""

COMMAND = """#!/bin/sh
cd {folder}
case {name} in
  sbatch)
    if [ -e refusal ]; then cat refusal >&2; exit 1; fi
    number=$(($(ls *.sh 2>/dev/null | wc -l) + 1))
    cat > $number.sh
    echo $number ;;
  squeue)
    [ -e queue ] && cat queue
    exit 0 ;;
  *) echo {name} "$@" >> calls ;;
esac
"""


class SmallSlurm:
    """A queue that lists what the test says, and the scripts that were submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "squeue", "scancel", "scontrol"):
            file = folder / "bin" / name
            file.write_text(COMMAND.format(folder=folder, name=name))
            file.chmod(0o755)

    @property
    def path(self) -> str:
        """The PATH with these commands first."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def lists(self, jobs: dict[str, str]) -> None:
        """Set what squeue lists: the state and reason of each job, as ``RUNNING|None``."""
        (self.folder / "queue").write_text("".join(f"{number}|{state}\n" for number, state in jobs.items()))

    def refuses(self, words: str) -> None:
        """Let sbatch refuse everything."""
        (self.folder / "refusal").write_text(words + "\n")

    def script(self, number: int) -> str:
        """The script of a job."""
        return (self.folder / f"{number}.sh").read_text()

    @property
    def submitted(self) -> int:
        """Number of scripts that were submitted."""
        return len(list(self.folder.glob("*.sh")))

    @property
    def calls(self) -> list[str]:
        """Calls of scancel and scontrol."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


def kept_tasks(folder: Path, table: str = "sweep") -> dict[str, str]:
    """The numbers of the runs' jobs, as the submission has noted them."""
    return json.loads((folder / "jobs" / f"{table}.json").read_text())["tasks"]


def options_of(script: str) -> dict[str, str]:
    """The options by which a script asks SLURM."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))
