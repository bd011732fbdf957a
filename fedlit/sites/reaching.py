"""Whether a server is reached with the certificate of a folder: the handshake of TLS, and nothing beyond it."""

import json
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedlit.core.errors import ConfigError
from fedlit.sites.messages import SOON

KITS = {"fed_client.json": "site", "fed_admin.json": "lead"}
"""What NVFlare calls the file that says where the server is, and whose folder it is then."""

PATIENCE = 10.0
"""Seconds for which an answer is awaited."""

PROXIES, DIRECT = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
"""Variables from which gRPC, and so NVFlare, takes a proxy and the machines that are reached without it; the first that is set counts."""

EXPIRED, NOT_YET, OTHER_NAME = 10, 9, 62
"""Numbers by which OpenSSL tells what is wrong with a certificate."""


class Unreachable(ConfigError):
    """The server does not answer, and may do so later."""


@dataclass(frozen=True)
class Kit:
    """What NVFlare has packed for a site or a lead: certificates, and where the server is.

    Attributes:
        folder: ``startup/``.
        role: Whose it is: ``site`` or ``lead``.
        host: Of the server.
        port: Of the server.
        identity: Name in the server's certificate.
    """

    folder: Path
    role: str
    host: str
    port: int
    identity: str

    def certificate(self) -> "Certificate":
        """Give the own certificate, be it valid or not.

        Raises:
            ConfigError: It cannot be read.
        """
        return _read(self.folder / "client.crt")

    @property
    def address(self) -> str:
        """Where the server is, for people."""
        return f"{self.host}:{self.port}"

    def looked_at(self, name: str | None = None) -> Iterator[str]:
        """Look at the certificates, then connect with them.

        Args:
            name: Whose certificate it has to be. By default anybody's.

        Yields:
            A line for each thing that is well.

        Raises:
            ConfigError: Something is not, and what to do.
        """
        if find_spec("nvflare") is None:
            raise ConfigError(
                "NVFlare is not installed here, and nothing runs across sites without: pip install 'fedlit[sites]'"
            )
        own = self.certificate()
        for certificate in (own, _read(self.folder / "rootCA.pem")):
            certificate.check_dates()
        if name is not None and own.name != name:
            raise ConfigError(
                f"{own.where} is for {own.name!r}, and this site is {name!r}: give both the same name, the certificate by a new request"
            )
        yield f"certificate of {own.name!r}, until {own.until:%Y-%m-%d}{own.soon}"
        server = self._handshake()
        through = f", through the proxy {urlsplit(proxy).hostname}" if (proxy := proxy_for(self.host)) else ""
        yield f"server {self.address}{through}: answers, and takes the certificate; its own is valid until {server.until:%Y-%m-%d}{server.soon}"

    def _handshake(self) -> "Certificate":
        """The server's certificate, once both sides have taken the other's."""
        try:
            context = ssl.create_default_context(cafile=str(self.folder / "rootCA.pem"))
            context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.folder}: client.crt and client.key cannot be used together ({error.strerror or error}); package them again"
            ) from error
        context.set_alpn_protocols(["h2"])
        try:
            with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.identity) as secured:
                found = _of(secured.getpeercert(binary_form=True), f"the server's certificate ({self.address})")
                if not secured.recv(1):  # a refusal of our certificate comes after our half of the handshake
                    raise ConnectionResetError("it has closed the connection")
                return found
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(self._unverified(error)) from error
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                raise ConfigError(
                    f"the server {self.address} refuses the certificate ({error.reason.lower().replace('_', ' ')}): is it of this "
                    "federation, and are the clocks right?"
                ) from error
            raise Unreachable(f"what answers at {self.address} does not speak TLS: {error.reason or error}") from error
        except OSError as error:
            raise Unreachable(
                f"the server {self.address} breaks the connection off ({error}): does it know this certificate?"
            ) from error

    def _connected(self) -> socket.socket:
        """Connect as NVFlare does, through the proxy that the environment names."""
        if proxy := proxy_for(self.host):
            return self._through(proxy)
        try:
            return socket.create_connection((self.host, self.port), PATIENCE)
        except socket.gaierror as error:
            raise Unreachable(
                f"the server {self.address}: no machine of this name is known here ({error.strerror}); look at the name, and at "
                "the name service of this network"
            ) from error
        except OSError as error:
            raise Unreachable(
                f"the server {self.address} cannot be reached ({error.strerror or error}): is it started, and may this machine "
                f"connect to port {self.port}?"
            ) from error

    def _through(self, proxy: str) -> socket.socket:
        """Connect through an HTTP proxy, by CONNECT."""
        there = urlsplit(proxy)
        shown = f"the proxy {there.hostname}:{there.port}"
        login = b64encode(f"{unquote(there.username or '')}:{unquote(there.password or '')}".encode()).decode()
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        lines += [f"Proxy-Authorization: Basic {login}"] if there.username else []
        try:
            connected = socket.create_connection((there.hostname, there.port), PATIENCE)
            connected.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and (more := connected.recv(1)):
                answer += more
        except OSError as error:
            raise Unreachable(
                f"{shown} cannot be reached ({error.strerror or error}): look at {' and '.join(PROXIES)} in the environment"
            ) from error
        status = answer.partition(b"\r\n")[0].decode(errors="replace")
        if status.split()[1:2] != ["200"]:
            connected.close()
            raise Unreachable(
                f"{shown} does not connect to {self.address} ({status or 'no answer'}): ask its people to allow it, or name "
                f"{self.host} in no_proxy where it is reached without the proxy"
            )
        return connected

    def _unverified(self, error: ssl.SSLCertVerificationError) -> str:
        """What is wrong with the server's certificate."""
        if error.verify_code in (EXPIRED, NOT_YET):
            try:
                _of(self._unchecked(), f"the server's certificate ({self.address})").check_dates()
            except ConfigError as told:
                return str(told)
        if error.verify_code == OTHER_NAME:
            return f"the certificate of {self.address} is not for {self.identity!r}: another server answers there"
        return (
            f"the certificate of {self.address} is not of this federation ({error.verify_message}): another server answers there, "
            "or somebody in between"
        )

    def _unchecked(self) -> bytes:
        """The server's certificate, whatever is wrong with it; nothing is sent to it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.identity) as secured:
            return secured.getpeercert(binary_form=True)


def proxy_for(host: str) -> str | None:
    """Return the proxy through which gRPC reaches a machine; None if it is reached directly.

    Raises:
        ConfigError: The environment names a proxy that gRPC cannot use.
    """
    spared = next(filter(None, map(os.environ.get, DIRECT)), "")
    name = next((name for name in PROXIES if os.environ.get(name)), None)
    if name is None or any(host.endswith(end) for end in map(str.strip, spared.split(",")) if end):
        return None
    there = urlsplit(os.environ[name])
    if there.scheme != "http" or not there.hostname or not there.port:
        raise ConfigError(
            f"{name}: expected http://PROXY:PORT, the only form that NVFlare uses, found another one; change it"
        )
    return os.environ[name]


def kit_of(folder: Path) -> Kit | None:
    """Read where the server is; nothing where the folder has no certificate yet.

    Args:
        folder: Of a site or of a lead.

    Raises:
        ConfigError: The file cannot be read.
    """
    startup = folder / "startup"
    for name, role in KITS.items():
        file = startup / name
        if not file.exists():
            continue
        try:
            held = json.loads(file.read_text())
            if role == "lead":
                there = held["admin"]
                return Kit(startup, role, there["host"], int(there["port"]), there["server_identity"])
            (server,) = held["servers"]
            host, _, port = server["service"]["target"].rpartition(":")
            return Kit(startup, role, host, int(port), server["identity"])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): package it again") from error
    return None


@dataclass(frozen=True)
class Certificate:
    """Whose a certificate is, and when it is valid.

    Attributes:
        where: What it is, for people.
        name: Whose.
        since, until: When it is valid.
    """

    where: str
    name: str
    since: datetime
    until: datetime

    @property
    def soon(self) -> str:
        """That it ends before long, or nothing."""
        return ": ask for a new one now" if self.until - _now() < SOON else ""

    def check_dates(self) -> None:
        """Look at its dates by the clock of this machine.

        Raises:
            ConfigError: It is not valid any more, or not yet.
        """
        if _now() > self.until:
            raise ConfigError(
                f"{self.where} has expired on {_shown(self.until)}, and the clock of this machine says {_shown(_now())}: a new one "
                "comes by a new request"
            )
        if _now() < self.since:
            raise ConfigError(
                f"{self.where} is valid from {_shown(self.since)} on, and the clock of this machine says {_shown(_now())}: set the "
                "clock"
            )


def _read(file: Path) -> Certificate:
    try:
        return _of(ssl.PEM_cert_to_DER_cert(file.read_text()), str(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): package it again") from error


def _of(content: bytes, where: str) -> Certificate:
    from cryptography import x509  # comes with NVFlare

    read = x509.load_der_x509_certificate(content)
    names = read.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return Certificate(where, str(names[0].value) if names else "", *_dates(read))


def _dates(certificate) -> tuple[datetime, datetime]:
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _shown(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
