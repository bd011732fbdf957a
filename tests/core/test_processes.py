"""The fork server that is started before anybody knows whether there will be workers."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

EARLY = """
import os
from multiprocessing import forkserver
from fedlit.core import processes

processes.cores = lambda: 2
processes.PRELOADED = "json"
"""


def ran(script: str, **options) -> subprocess.CompletedProcess:
    """A script of its own: nothing of the tests' fork server is in it."""
    return subprocess.run(
        [sys.executable, "-c", EARLY + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("system", ["Linux", "macOS, which has no waitid"])
def test_one_that_nobody_needs_is_ended_and_another_one_starts(system):
    done = ran(f"""
        if {system.startswith("macOS")}:
            del os.waitid
        processes.start_early()
        pid = forkserver._forkserver._forkserver_pid
        processes.stop_unneeded()
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            print("gone")
        with processes.without_main():
            process = processes.context().Process(target=print, args=("a process",))
            process.start()
        process.join()
        print(process.exitcode, forkserver._forkserver._forkserver_pid != pid)
    """)
    assert done.stdout.splitlines() == ["gone", "a process", "0 True"], done.stderr


def test_one_of_somebody_else_is_left_alone():
    done = ran("""
        processes.start_ahead()
        processes.stop_unneeded()
        os.kill(forkserver._forkserver._forkserver_pid, 0)
        print("alive")
    """)
    assert done.stdout == "alive\n", done.stderr


def test_with_one_core_there_is_none():
    done = ran("""
        processes.cores = lambda: 1
        processes.start_early()
        print(forkserver._forkserver._forkserver_pid)
    """)
    assert done.stdout == "None\n", done.stderr


def test_it_ends_with_a_command_that_ends_while_it_imports(tmp_path: Path):
    """What waits for the command's output, such as a pipe, does not wait for an import that nobody needs."""
    (tmp_path / "timm.py").write_text("import time; time.sleep(120)\n")
    began = time.monotonic()
    done = ran(
        """
        processes.PRELOADED = "fedlit.federation.engines.preload"
        processes.start_early()
        """,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30
