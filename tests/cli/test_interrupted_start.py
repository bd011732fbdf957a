"""Ctrl-C while fedlit starts: it ends immediately, without a traceback."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A module that announces when it is being imported, in the place of the real one.
SLOW = "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"
STARTS = {
    "python -m": ["-m", "fedlit", "list"],
    "console script": [
        "-c",
        "import sys; sys.argv = ['fedlit', 'list']; from fedlit.cli import main; sys.exit(main())",
    ],
}


@pytest.mark.parametrize(("start", "module"), [("python -m", "jsonargparse"), ("console script", "torch")])
def test_ctrl_c_during_the_imports(start, module, tmp_path: Path):
    (tmp_path / f"{module}.py").write_text(SLOW)
    repository = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, *STARTS[start]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{repository}", "PATH": "/usr/bin:/bin"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert "importing\n" in process.stdout
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_ctrl_c_while_the_command_line_is_read(fedlit_cli, monkeypatch):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fedlit.cli.main"], "parse", interrupted)
    assert fedlit_cli("list") == (130, "", "")
