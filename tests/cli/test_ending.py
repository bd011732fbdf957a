"""The end of a command: immediate, but after all registered functions."""

import subprocess
import sys

import pytest

ENDING = """
import atexit, sys, threading, time
import fedlit.cli.main

command_line = sys.modules["fedlit.cli.main"]

class Apart:
    def __del__(self):
        print("taken apart")

kept, library = Apart(), dict(main=command_line.main, register=atexit.register)
exec("def begun(): register(print, 'at exit'); main()", library)  # as a library that a command imports
command_line.main = library["begun"]
{before}
sys.argv = ["fedlit", *{words!r}]
command_line.run()
"""


def ended(before: str = "", words: tuple[str, ...] = ("--version",)) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(before=before, words=list(words))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("words", "code"), [(("--version",), 0), (("--no-such-option",), 2)])
def test_modules_are_not_taken_apart_and_what_is_registered_runs_after_threads_have_ended(words, code):
    """Also after a thread such as that of the user's own logger, which still sends."""
    work = "threading.Thread(target=lambda: (time.sleep(0.5), print('sent'))).start()"
    found, printed = ended(work, words)
    assert found == code
    assert printed[-2:] == ["sent", "at exit"]


def test_a_profiler_sees_the_end():
    assert ended("import cProfile; profile = cProfile.Profile(); profile.enable()")[1][-1] == "taken apart"
