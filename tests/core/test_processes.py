"""How processes start: as a copy of this process, or from a fork server; imports and seeds of each."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import execute

from fedlit.core.randomness import seed_process
from fedlit.core.seeds import derive_seed

OWN = """
import multiprocessing, os, signal, sys, threading
from fedlit.core.system import processes

processes.PRELOADED[:] = ["json"]

def ran(code, alike=True):
    with processes.starting():
        process = processes.context(alike).Process(target=exec, args=(code,))
        process.start()
    process.join()
    return process.exitcode
"""

ANSWER = "import sys; sys.exit(getattr(sys, 'answer', 1))"
"""Code that exits with the `sys.answer` of the process that it was copied from."""


def ran(script: str, before: str = OWN, **options) -> subprocess.CompletedProcess:
    """Run a script in a process without the tests' fork server."""
    return subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux")
class TestCopies:
    def test_what_is_loaded_is_there_at_once_and_each_time_anew(self):
        """The second process is not a copy of the state at the first."""
        done = ran(f"""
            for sys.answer in (42, 43):
                print(ran({ANSWER!r}), ran({ANSWER!r}))
            """)
        assert done.stdout.splitlines() == ["42 42", "43 43"], done.stderr

    def test_what_is_shared_is_looked_through_again_only_afterwards(self):
        """A collection would write to every object, in each process."""
        frozen = "import gc, sys; sys.exit(bool(gc.get_freeze_count()) * 42)"
        done = ran(f"""
            import gc
            print(ran({frozen!r}), gc.get_freeze_count(), gc.isenabled())
            """)
        assert done.stdout == "42 0 True\n", done.stderr

    def test_what_a_copy_would_lack_is_started_from_nothing(self):
        """Who uses threads; beside the watch of a job, which a copy can lack; beside another thread."""
        done = ran(f"""
            def waiting(**named):
                threading.Thread(target=threading.Event().wait, daemon=True, **named).start()

            sys.answer = 42
            print(ran({ANSWER!r}, alike=False))
            waiting(name=processes.WATCH)
            print(ran({ANSWER!r}))
            waiting()
            print(ran({ANSWER!r}))
            """)
        assert done.stdout.split() == ["1", "42", "1"], done.stderr

    def test_a_copy_computes_after_a_convolution_with_two_threads(self, tmp_path: Path):
        """Like a worker, with one thread."""
        code = (
            "import sys, torch; torch.set_num_threads(1); "
            "x = torch.nn.functional.conv2d(torch.ones(8, 16, 32, 32), torch.ones(16, 16, 3, 3)); sys.exit(int(x[0, "
            "0, 1, 1]))"
        )
        script = f"""
            import torch
            torch.set_num_threads(2)
            torch.nn.functional.conv2d(torch.ones(8, 16, 32, 32), torch.ones(16, 16, 3, 3)).sum()
            print(ran({code!r}))
            """
        done = execute(OWN + textwrap.dedent(script), tmp_path)
        assert (done.wait(), done.output) == (0, "144\n")

    def test_it_keeps_no_pipe_open(self):
        """The reader of a pipe sees its end although a copy still runs."""
        done = ran("""
            read, write = os.pipe()
            go, gone = os.pipe(), os.pipe()

            def work():
                processes.let_go((go[0], gone[1]))
                os.write(gone[1], b"1")
                os.read(go[0], 1)

            with processes.starting():
                process = processes.context(alike=True).Process(target=work)
                process.start()
            os.read(gone[0], 1)
            os.close(write)
            print(os.read(read, 1), process.is_alive())
            os.write(go[1], b"1")
            process.join()
            """)
        assert done.stdout == "b'' True\n", done.stderr


def test_a_script_is_not_run_again(tmp_path: Path):
    """Processes that import everything themselves, from a script without a guard."""
    (tmp_path / "script.py").write_text(OWN + "print('begins')\nprint(ran('pass', alike=False))\n")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["begins", "0"], done.stderr


OLD = """
import gc
from fedlit.core.system.imports import uncollected

for before in (lambda: None, gc.disable, lambda: (gc.enable(), gc.freeze())):
    before()
    with uncollected():
        inside, made = gc.isenabled(), [[]]
    print(inside, gc.isenabled(), any(each is made for each in gc.get_objects(2)), gc.get_freeze_count() > 0)
"""


def test_what_has_been_imported_is_old_at_once(tmp_path: Path):
    """Also where collections are disabled, or objects are frozen already."""
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout.splitlines() == ["False True True False", "False False False False", "False True False True"]


def test_the_default_generators_are_as_after_torchs_own_seeding():
    seed_process(3, "round", 7, "site-1")
    drawn = torch.rand(5), np.random.random(), random.random()
    value = derive_seed(3, "round", 7, "site-1")
    torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)
    assert torch.equal(drawn[0], torch.rand(5))
    assert drawn[1:] == (np.random.random(), random.random())
