"""The commands of SLURM that fedlit calls: sbatch, squeue and scancel."""

import getpass
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from fedlit.core.errors import ConfigError

ANSWER_SECONDS = 60
"""Longest wait for an answer of SLURM's controller."""


@dataclass(frozen=True)
class Job:
    """A job that SLURM lists."""

    state: str  # Such as ``RUNNING`` or ``PENDING``.
    reason: str  # Why it waits, in SLURM's words.


def submit(script: str) -> str:
    """Submit a script from the working directory; return its job's number.

    Raises:
        ConfigError: SLURM refuses it; has SLURM's words.
    """
    return _called("sbatch", "--parsable", text=script).strip().partition(";")[0]


def listed() -> dict[str, Job]:
    """Return the user's jobs that wait or run, by number: ``123``, or ``123_4`` for a task of an array.

    Raises:
        ConfigError: SLURM does not answer.
    """
    words = ("--noheader", "--array", "--user", getpass.getuser(), "--format", "%i|%T|%r")
    rows = [row.strip().split("|", 2) for row in _called("squeue", *words).splitlines() if row.strip()]
    return {number: Job(state, reason) for number, state, reason in rows}


def ended(job: str) -> bool:
    """Return whether SLURM no longer lists a job, which may be of another user; False if it does not answer."""
    try:
        return not _called("squeue", "--noheader", "--jobs", job, "--format", "%A").strip()
    except ConfigError as error:
        return "Invalid job id" in str(error)


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs; those that have ended are skipped."""
    _called("scancel", *jobs)


def _called(command: str, *words: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            (command, *words), input=text, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ConfigError(
            f"--on: there is no command {command} here; start this on a machine of the cluster that submits jobs, or "
            "use --print_jobs true and start its commands another way"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command}: SLURM did not answer within {ANSWER_SECONDS} s; try again later") from None
    if done.returncode:
        said = re.sub(rf"^{command}: (error: )?", "", done.stderr.strip(), flags=re.MULTILINE)
        raise ConfigError(f"{command}: {said or f'exit code {done.returncode}'}")
    return done.stdout
