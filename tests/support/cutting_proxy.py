"""A TCP proxy on loopback that passes everything on, cuts connections, or swallows answers."""

import select
import socket
import socketserver
import threading


class CuttingProxy(socketserver.ThreadingTCPServer):
    """Proxy before a port of this machine.

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
