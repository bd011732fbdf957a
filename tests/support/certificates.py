"""Certificates as those of a federation, and a server that asks for them, in a thread of the test."""

import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


@dataclass
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        encoded = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(encoded)
        (folder / f"{name}.crt").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))


@dataclass
class Authority:
    """Who signs for a federation."""

    own: Pair = field(default_factory=lambda: issued("a federation", None))

    def pair(self, name: str, **dates: datetime.timedelta) -> Pair:
        return issued(name, self.own, **dates)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.own.certificate.public_bytes(serialization.Encoding.PEM))


def issued(name: str, by: Pair | None, since: datetime.timedelta = -DAY, until: datetime.timedelta = 365 * DAY) -> Pair:
    """Make a certificate that is valid between two moments, counted from now; without an issuer it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() + since)
        .not_valid_after(now() + until)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name.replace(" ", "-"))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if by is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    return Pair(builder.sign(by.key if by else key, hashes.SHA256()), key)


def packed(folder: Path, authority: Authority, pair: Pair, port: int, host: str = "localhost") -> Path:
    """Write what NVFlare packs for a site; returns the site's folder."""
    startup = folder / "startup"
    pair.write(startup, "client")
    authority.write(startup / "rootCA.pem")
    server = {"service": {"target": f"{host}:{port}", "scheme": "grpc"}, "identity": "localhost"}
    (startup / "fed_client.json").write_text(json.dumps({"servers": [server]}))
    return folder


@contextmanager
def listening(folder: Path, authority: Authority, pair: Pair | None) -> Iterator[int]:
    """Listen as a server of the federation, which asks for a certificate, or without TLS if it has no pair."""
    context = None
    if pair:
        pair.write(folder, "server")
        authority.write(folder / "root.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        context.load_verify_locations(folder / "root.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, context), daemon=True).start()
        yield server.getsockname()[1]


def _answer(server: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            plain, _ = server.accept()
        except OSError:
            return
        with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) if context else plain as taken:
            taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            taken.recv(1)
