"""What all tests share: one thread (tests compare bits, and several workers run side by side), and the command line."""

import shlex

import pytest
import torch

from fedlit.cli.main import main

torch.set_num_threads(1)


@pytest.fixture
def fedlit_cli(capsys: pytest.CaptureFixture):
    """Runs a command line in this process: its exit code, and what it printed on stdout and stderr."""

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line))
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run
