"""An MLflow server in a process of its own, which answers, answers 500, answers nothing, or is dead."""

import os
import time
import urllib.request
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path

from runs import context


class Server:
    """Start, disturb and mend a server of MLflow on loopback.

    Args:
        folder: Where its database and its artifacts lie.
        port: Where it listens.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.uri, self.store = f"http://127.0.0.1:{port}", f"sqlite:///{folder / 'mlflow.db'}"
        self.port, self._mode = port, folder / "mode"
        self._words = (port, self.store, (folder / "artifacts").as_uri(), self._mode)
        self.process = self._started()

    def break_down(self, how: str) -> None:
        """Make it ``dead`` (killed), or have it answer each request with ``500``, or ``hang`` on each."""
        if how == "dead":
            self.stop()
        else:
            self._mode.write_text(how)

    def mend(self) -> None:
        """Let it answer again."""
        self._mode.write_text("ok")
        if not self.process.is_alive():
            self.process = self._started()

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _started(self) -> BaseProcess:
        self._mode.write_text("ok")
        process = context().Process(target=_serve, args=self._words)
        process.start()
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return process
            except OSError:
                assert time.monotonic() < deadline, "the server of MLflow does not start"
                time.sleep(0.1)


def _serve(port: int, store: str, artifacts: str, mode: Path) -> None:
    """Serve until killed."""
    os.environ |= {"_MLFLOW_SERVER_FILE_STORE": store, "_MLFLOW_SERVER_ARTIFACT_ROOT": artifacts}
    from mlflow.server import app  # takes seconds
    from werkzeug.serving import make_server

    def moody(environ: dict, start_response: Callable) -> Iterable[bytes]:
        match mode.read_text():
            case "500":
                start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
                return [b"the database is on fire"]
            case "hang":
                time.sleep(600)
        return app(environ, start_response)

    make_server("127.0.0.1", port, moody, threaded=True).serve_forever()
