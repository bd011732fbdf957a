"""Check of the connection to a server with the certificate of a folder: only the TLS handshake."""

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.sites.messages import SOON, printable

KITS = {"fed_client.json": "site", "fed_admin.json": "lead"}
"""NVFlare's names of the file with the server's address, and the role of its folder."""

PATIENCE = 10.0
"""Seconds to wait for an answer."""

HEAD = 2**16
"""Most bytes of a proxy's answer that are read."""

PROXIES, DIRECT = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
"""Variables with gRPC's proxy, and with the machines that are reached without it; the first that is set counts."""

EXPIRED, NOT_YET, OTHER_NAME = 10, 9, 62
"""OpenSSL's error codes for certificates."""


class Unreachable(ConfigError):
    """Error of a server that does not answer now."""


@dataclass(frozen=True)
class Kit:
    """The start-up kit of NVFlare for a site or a lead: certificates, and the server's address."""

    folder: Path  # `startup/`.
    role: str  # `site` or `lead`.
    host: str  # The server's machine.
    port: int  # The server's port.
    identity: str  # Name in the server's certificate.

    def certificate(self) -> "Certificate":
        """Return the own certificate, whether valid or not.

        Raises:
            ConfigError: If it cannot be read.
        """
        return _read(self.folder / "client.crt")

    @property
    def address(self) -> str:
        """The server's address, readable."""
        return f"{self.host}:{self.port}"

    @property
    def unless(self) -> str:
        """The condition that only the server knows, for the end of a check."""
        return f", unless the server's administrator has disabled {self.certificate().name!r}: that was not checked"

    def checks(self, name: str | None = None) -> Iterator[str]:
        """Check the certificates, then connect with them.

        Args:
            name: Name that the certificate must have. By default any.

        Yields:
            A line for each check that has passed.

        Raises:
            ConfigError: If a check fails; names the fix.
        """
        if find_spec("nvflare") is None:
            raise ConfigError("NVFlare is not installed here, but sites need it: pip install 'fedlit[sites]'")
        ours = self.certificate()
        for certificate in (ours, _read(self.folder / "rootCA.pem")):
            certificate.check_dates()
        if name is not None and ours.name != name:
            raise ConfigError(
                f"{ours.where}: expected the name {name!r} of this site, found {ours.name!r}; change the name in the "
                "site's file, or request a new certificate"
            )
        yield f"certificate of {ours.name!r}: valid until {ours.until:%Y-%m-%d}{ours.soon}"
        server = self._handshake()
        through = f", through the proxy {proxy.hostname}" if (proxy := proxy_for(self.host)) else ""
        yield (
            f"server {self.address}{through}: answers, and both certificates are from this federation; its own is "
            f"valid until {server.until:%Y-%m-%d}{server.soon}"
        )

    def _handshake(self) -> "Certificate":
        """Return the server's certificate after a handshake in which both sides accept the other's."""
        try:
            context = ssl.create_default_context(cafile=str(self.folder / "rootCA.pem"))
            context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.folder}: client.crt and client.key cannot be used together ({error.strerror or error}); "
                "repeat `nvflare package`"
            ) from error
        context.set_alpn_protocols(["h2"])
        try:
            with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.identity) as secured:
                theirs = _of(secured.getpeercert(binary_form=True), f"the server's certificate ({self.address})")
                if not secured.recv(1):  # a server refuses our certificate after our part of the handshake
                    raise ConnectionResetError("it closed the connection")
                return theirs
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(self._unverified(error)) from error
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                raise ConfigError(
                    f"the server {self.address} refuses the certificate ({error.reason.lower().replace('_', ' ')}): "
                    "check that it is from this federation, and that the clocks are right"
                ) from error
            raise Unreachable(
                f"the program that answers at {self.address} does not speak TLS: {error.reason or error}"
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"the server {self.address} accepts the connection, but does not answer") from error
        except OSError as error:
            raise Unreachable(
                f"the server {self.address} closes the connection ({error}): check that the certificate is from this "
                "federation"
            ) from error

    def _connected(self) -> socket.socket:
        """Connect as NVFlare does, through the proxy in the environment if there is one."""
        if proxy := proxy_for(self.host):
            return self._through(proxy)
        try:
            return socket.create_connection((self.host, self.port), PATIENCE)
        except socket.gaierror as error:
            raise Unreachable(
                f"the server {self.address}: no machine with this name is known here ({error.strerror}); check the "
                "name, and this network's name service"
            ) from error
        except OSError as error:
            raise Unreachable(
                f"the server {self.address} cannot be reached ({error.strerror or error}): check that it is running, "
                f"and that this machine may connect to port {self.port}"
            ) from error

    def _through(self, proxy: SplitResult) -> socket.socket:
        """Connect through an HTTP proxy, by CONNECT; no error shows its user or password."""
        shown = f"the proxy {proxy.hostname}:{proxy.port}"
        login = b64encode(f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()).decode()
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        lines += [f"Proxy-Authorization: Basic {login}"] if proxy.username else []
        try:
            connected = socket.create_connection((proxy.hostname, proxy.port), PATIENCE)
            connected.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n") and len(answer) < HEAD and (more := connected.recv(1)):
                answer += more
        except OSError as error:
            raise Unreachable(
                f"{shown} cannot be reached ({error.strerror or error}): check {' and '.join(PROXIES)} in the "
                "environment"
            ) from error
        status = printable(answer.partition(b"\r\n")[0].decode(errors="replace"), 100)
        if status.split()[1:2] != ["200"] or not answer.endswith(b"\r\n\r\n"):
            connected.close()
            raise Unreachable(
                f"{shown} does not connect to {self.address} ({status or 'no answer'}): ask its administrator to "
                f"allow it, or add {self.host} to no_proxy if it can be reached without the proxy"
            )
        return connected

    def _unverified(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code in (EXPIRED, NOT_YET):
            try:
                _of(self._unchecked(), f"the server's certificate ({self.address})").check_dates()
            except ConfigError as invalid:
                return str(invalid)
        if error.verify_code == OTHER_NAME:
            return f"the certificate of {self.address} is not for {self.identity!r}: another server answers there"
        return (
            f"the certificate of {self.address} is not from this federation ({error.verify_message}): another server "
            "answers there, or a machine in between"
        )

    def _unchecked(self) -> bytes:
        """Return the server's certificate without checking it; no data are sent."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.identity) as secured:
            return secured.getpeercert(binary_form=True)


def proxy_for(host: str) -> SplitResult | None:
    """Return the proxy through which gRPC reaches a machine; None if it is reached directly.

    Raises:
        ConfigError: The environment names a proxy that gRPC cannot use; the error does not show its address, which may
            hold a password.
    """
    spared = next(filter(None, map(os.environ.get, DIRECT)), "")
    name = next((name for name in PROXIES if os.environ.get(name)), None)
    if name is None or any(host.endswith(end) for end in map(str.strip, spared.split(",")) if end):
        return None
    with suppress(ValueError):  # of a port or an address that cannot be read
        proxy = urlsplit(os.environ[name])
        if proxy.scheme == "http" and proxy.hostname and proxy.port:
            return proxy
    raise ConfigError(
        f"{name}: expected http://PROXY:PORT or http://USER:PASSWORD@PROXY:PORT, found another form; change it, and "
        "write characters such as / and @ of a password as %2F and %40"
    )


def kit_of(folder: Path) -> Kit | None:
    """Read the start-up kit of a folder; None if the folder has no certificate yet.

    Raises:
        ConfigError: If the kit cannot be read.
    """
    startup = folder / "startup"
    for name, role in KITS.items():
        file = startup / name
        if not file.exists():
            continue
        try:
            held = documents.parse_json(file.read_text())
            if role == "lead":
                there = held["admin"]
                return Kit(startup, role, there["host"], int(there["port"]), there["server_identity"])
            (server,) = held["servers"]
            host, _, port = server["service"]["target"].rpartition(":")
            return Kit(startup, role, host, int(port), server["identity"])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): repeat `nvflare package`") from error
    return None


@dataclass(frozen=True)
class Certificate:
    """A certificate: its owner, and when it is valid."""

    where: str  # Readable name of the certificate.
    name: str  # Name of its owner.
    # since, until: When it is valid.
    since: datetime
    until: datetime

    @property
    def soon(self) -> str:
        """Advice if it expires soon, else ""."""
        return ": request a new one now" if self.until - _now() < SOON else ""

    def check_dates(self) -> None:
        """Check its dates by the clock of this machine.

        Raises:
            ConfigError: If it has expired, or is not valid yet.
        """
        if _now() > self.until:
            raise ConfigError(
                f"{self.where} has expired on {_shown(self.until)}, and the clock of this machine says "
                f"{_shown(_now())}: request a new one"
            )
        if _now() < self.since:
            raise ConfigError(
                f"{self.where} is valid from {_shown(self.since)} on, and the clock of this machine says "
                f"{_shown(_now())}: set the clock"
            )


def _read(file: Path) -> Certificate:
    try:
        return _of(ssl.PEM_cert_to_DER_cert(file.read_text()), str(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): repeat `nvflare package`") from error


def _of(content: bytes, where: str) -> Certificate:
    from cryptography import x509  # comes with NVFlare

    read = x509.load_der_x509_certificate(content)
    names = read.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    name = str(names[0].value) if names else ""
    return Certificate(where, name, read.not_valid_before_utc, read.not_valid_after_utc)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _shown(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
