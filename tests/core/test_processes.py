"""What processes are forked from: a copy of this process, or a fork server that is started before anybody needs it.

And what they keep of the memory that they free.
"""

import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

OWN = """
import multiprocessing, os, signal, sys, threading
from multiprocessing import forkserver
from fedlit.core import processes

processes.cores = lambda: 2
processes.PRELOADED = "json"

def ran(code):
    with processes.without_main():
        process = processes.context().Process(target=exec, args=(code,))
        process.start()
    process.join()
    return process.exitcode
"""

EARLY = OWN + "processes.COPIES = False\n"

ANSWER = "import sys; sys.exit(getattr(sys, 'answer', 1))"
"""What a process runs that tells by its exit code what `sys.answer` was in the process that it is copied from."""


def ran(script: str, before: str = EARLY, **options) -> subprocess.CompletedProcess:
    """A script of its own: nothing of the tests' fork server is in it."""
    return subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_memory_that_a_step_frees_is_there_for_the_next_one():
    done = ran(
        """
        import resource

        def pages():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(20):
                freed = [bytearray(b"1") * 2**23 for _ in range(3)]
                del freed
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        print(pages())
        processes.keep_freed_memory()
        pages()
        print(pages())
        """
    )
    before, after = map(int, done.stdout.split())
    assert before > 10_000, "glibc keeps it without being told"
    assert after < 100, done.stderr


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


def test_where_processes_can_be_copied_none_imports_early():
    done = ran("processes.COPIES = True; processes.start_early(); print(forkserver._forkserver._forkserver_pid)")
    assert done.stdout == "None\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux")
class TestCopies:
    def test_what_is_loaded_is_there_at_once_and_each_time_anew(self):
        """The second one is no copy of what there was at the first."""
        done = ran(
            f"""
            for sys.answer in (42, 43):
                with processes.started_ahead(alike=True):
                    pid = forkserver._forkserver._forkserver_pid
                    print(ran({ANSWER!r}), ran({ANSWER!r}))
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    print("gone")
            """,
            OWN,
        )
        assert done.stdout.splitlines() == ["42 42", "gone", "43 43", "gone"], done.stderr

    def test_what_is_shared_is_looked_through_again_only_afterwards(self):
        """A search for garbage would write to every object, in each process."""
        frozen = "import gc, sys; sys.exit(bool(gc.get_freeze_count()) * 42)"
        done = ran(
            f"""
            import gc
            with processes.started_ahead(alike=True):
                print(gc.get_freeze_count() > 0, ran({frozen!r}))
            print(gc.get_freeze_count(), gc.isenabled())
            """,
            OWN,
        )
        assert done.stdout.splitlines() == ["True 42", "0 True"], done.stderr

    @pytest.mark.parametrize(
        ("before", "alike"),
        [
            ("", False),
            ("threading.Thread(target=threading.Event().wait, daemon=True).start()", True),
            ('import _thread; begun, never = threading.Event(), threading.Event(); '
             '_thread.start_new_thread(lambda: (begun.set(), never.wait()), ()); begun.wait()', True),
            ("file = open(processes.__file__)", True),
            ("from types import SimpleNamespace as Has; sys.modules['torch'] = Has(cuda=Has(device_count=lambda: 1))", True),
        ],
        ids=["who uses threads", "a thread", "a thread without a name", "an open file", "a GPU"],
    )  # fmt: skip
    def test_what_a_copy_would_lack_is_started_from_nothing(self, before, alike):
        done = ran(
            f"""
            {before}
            sys.answer = 42
            with processes.started_ahead(alike={alike}):
                print(ran({ANSWER!r}))
            """,
            OWN,
        )
        assert done.stdout == "1\n", done.stderr

    def test_a_file_that_is_only_written_and_the_watch_of_a_job_are_no_hindrance(self, tmp_path: Path):
        done = ran(
            f"""
            log = open({str(tmp_path / "log")!r}, "w")
            threading.Thread(target=threading.Event().wait, daemon=True, name=processes.WATCH).start()
            sys.answer = 42
            with processes.started_ahead(alike=True):
                print(ran({ANSWER!r}))
            """,
            OWN,
        )
        assert done.stdout == "42\n", done.stderr

    def test_fonts_that_a_picture_has_opened_are_no_hindrance_and_a_copy_draws_the_same(self):
        done = ran(
            f"""
            import hashlib, io
            from matplotlib.figure import Figure

            def drawn():
                figure, picture = Figure(), io.BytesIO()
                figure.subplots().set_title("A title")
                figure.savefig(picture, metadata={{"Software": None}})
                return hashlib.sha256(picture.getvalue()).digest()[0]

            sys.answer = drawn()
            fonts = [fd for fd in processes._descriptors() if os.path.realpath(f"/proc/self/fd/{{fd}}").endswith(".ttf")]
            with processes.started_ahead(alike=True):
                print(len(fonts) > 0, ran({ANSWER!r}) == ran("import sys; sys.exit(sys.modules['__main__'].drawn())") == drawn())
            """,
            OWN,
        )
        assert done.stdout == "True True\n", done.stderr

    def test_it_keeps_no_pipe_open_and_answers_no_signal(self):
        """Whoever reads from a pipe sees its end, and a handler of this process does not run in another one."""
        done = ran(
            """
            read, write = os.pipe()
            signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
            with processes.started_ahead(alike=True):
                os.close(write)
                print(os.read(read, 1))
                pid = forkserver._forkserver._forkserver_pid
                os.kill(pid, signal.SIGTERM)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                forkserver._forkserver._forkserver_pid = None
            """,
            OWN,
        )
        assert done.stdout.splitlines() == ["b''", str(-signal.SIGTERM)], done.stderr

    def test_it_ends_with_a_process_that_is_killed(self):
        """What waits for the output, such as a pipe, would wait for the copy too."""
        began = time.monotonic()
        done = ran(
            """
            with processes.started_ahead(alike=True):
                print("killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """,
            OWN,
        )
        assert (done.stdout, done.returncode) == ("killed\n", -signal.SIGKILL), done.stderr
        assert time.monotonic() - began < 30
