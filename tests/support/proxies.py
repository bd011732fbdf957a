"""Proxies of this machine: one that connects where it is asked to, as a hospital's, and one that cuts connections."""

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """A proxy that runs.

    Attributes:
        allowed: Ports to which it connects; None for any.
        answer: What it answers in place of a connection; None connects.
        asked: Heads of the requests that have come.
        port: Where it listens.
    """

    allowed: set[int] | None = None
    answer: bytes | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(taken,), daemon=True).start()

    def _connect(self, taken: socket.socket) -> None:
        with suppress(OSError), taken:
            head = b""
            while b"\r\n\r\n" not in head:
                head += taken.recv(1)
            self.asked.append(head.decode())
            if self.answer is not None:
                taken.sendall(self.answer)
                return
            host, _, port = head.split()[1].decode().rpartition(":")
            if self.allowed is not None and int(port) not in self.allowed:
                taken.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            with socket.create_connection((host, int(port))) as onward:
                taken.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                threading.Thread(target=_pump, args=(onward, taken), daemon=True).start()
                _pump(taken, onward)


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while content := one.recv(65536):
            other.sendall(content)
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxying(allowed: set[int] | None = None, answer: bytes | None = None) -> Iterator[Proxy]:
    """Context manager in which a proxy listens on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(allowed, answer, port=listener.getsockname()[1])
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)  # closing it alone would not end the thread's wait


class CuttingProxy(socketserver.ThreadingTCPServer):
    """TCP proxy before a port of this machine, which passes everything on, cuts connections, or swallows answers.

    Attributes:
        mode: ``pass``, or ``cut``: a request is not passed on, or ``swallow``: it is, but its answer is not. Both end
            the connection.
        cuts: Number of connections that it has ended so.
    """

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream, self.mode, self.cuts = port, "pass", 0
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Connection(socketserver.BaseRequestHandler):
    server: CuttingProxy

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            while True:
                for source in select.select([self.request, upstream], [], [])[0]:
                    if not (data := source.recv(65536)):
                        return
                    if self.server.mode == ("swallow" if source is upstream else "cut"):
                        self.server.cuts += 1
                        return
                    (self.request if source is upstream else upstream).sendall(data)
