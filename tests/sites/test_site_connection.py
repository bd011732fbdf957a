"""Whether the server is reached with a folder's certificate, and what is said where it is not."""

import datetime
import json
import socket
from pathlib import Path

import pytest
import refusals
from certificates import DAY, Authority, issued, listening, now, packed
from proxies import proxying

from fedlit.core.errors import ConfigError
from fedlit.sites import connection
from fedlit.sites.connection import Unreachable, kit_of

HOUR = DAY / 24


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def with_nvflare(monkeypatch):
    monkeypatch.setattr(connection, "find_spec", lambda name: name)
    for name in (*connection.PROXIES, *connection.DIRECT):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def network(tmp_path: Path, authority: Authority):
    """Looks at a site's folder while a server listens: what is said, or the error."""

    def look(own=None, server=None, name: str | None = "north", tls: bool = True, host: str = "localhost") -> str:
        pair = server or authority.pair("localhost")
        with listening(tmp_path / "server", authority, pair if tls else None) as port:
            folder = packed(tmp_path / "site", authority, own or authority.pair("north"), port, host)
            try:
                return "\n".join(kit_of(folder).checks(name))
            except ConfigError as error:
                return str(error)

    return look


def shown(off: datetime.timedelta) -> str:
    return f"{now() + off:%Y-%m-%d %H:%M} UTC"


def test_a_server_that_takes_the_certificate(network):
    said = network()
    assert "certificate of 'north': valid until" in said
    assert "answers, and both certificates are from this federation" in said
    assert "request a new one" not in said


def test_an_expired_certificate_is_named_with_its_date(network, authority):
    until = -3 * DAY
    said = network(own=authority.pair("north", since=-30 * DAY, until=until))
    assert f"client.crt has expired on {shown(until)}" in said
    said = network(server=authority.pair("localhost", since=-30 * DAY, until=until))
    assert said.startswith("the server's certificate (localhost:")
    assert f"has expired on {shown(until)}, and the clock of this machine says " in said


def test_a_clock_an_hour_behind_is_told(network, authority):
    """A certificate that has just been signed is not valid yet by such a clock."""
    for given in ({"own": authority.pair("north", since=HOUR)}, {"server": authority.pair("localhost", since=HOUR)}):
        said = network(**given)
        assert f"is valid from {shown(HOUR)} on, and the clock of this machine says " in said
        assert ": set the clock" in said


def test_a_certificate_that_the_server_does_not_know_is_told(network):
    said = network(own=issued("north", None))
    assert "refuses the certificate" in said or "closes the connection" in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda authority: {"own": authority.pair("north", until=20 * DAY)}, "request a new one now"),
        (lambda authority: {"server": Authority().pair("localhost")}, "is not from this federation"),
        (lambda authority: {"server": authority.pair("elsewhere")}, "is not for 'localhost': another server answers"),
        (lambda authority: {"tls": False}, "does not speak TLS"),
        (lambda authority: {"name": "south"}, "client.crt: expected the name 'south' of this site, found 'north'"),
        (lambda authority: {"host": "fl.example.invalid"}, "no machine with this name is known here"),
    ],
    ids=["ends soon", "another federation", "another server", "no TLS", "another site", "an unknown machine"],
)
def test_what_is_odd_about_a_certificate_or_a_server_is_told(network, authority, given, words):
    assert words in network(**given(authority))


def test_a_server_that_does_not_listen_is_told(tmp_path, authority):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        kit = kit_of(packed(tmp_path / "site", authority, authority.pair("north"), port))
        with refusals.refused(Unreachable, f"localhost:{port}"):
            list(kit.checks())


def test_a_proxy_of_the_environment_is_used_as_nvflare_does(network, monkeypatch):
    with proxying() as proxy:
        monkeypatch.setenv("https_proxy", proxy.address.replace("//", "//ann:a%40b@"))
        said = network()
        assert ", through the proxy 127.0.0.1: answers, and both certificates" in said
        (head,) = proxy.asked
        assert head.startswith("CONNECT localhost:")
        assert "Proxy-Authorization: Basic YW5uOmFAYg==" in head
        monkeypatch.setenv("no_proxy", "other.example.org, localhost")
        assert "through the proxy" not in network()
        assert len(proxy.asked) == 1


def test_a_proxy_that_does_not_connect_is_told(network, monkeypatch):
    with proxying({443}) as proxy:
        monkeypatch.setenv("grpc_proxy", proxy.address)
        said = network()
    assert f"the proxy 127.0.0.1:{proxy.port} does not connect to localhost:" in said
    assert "(HTTP/1.1 403 Forbidden): ask its administrator to allow it, or add localhost to no_proxy" in said
    assert f"the proxy 127.0.0.1:{proxy.port} cannot be reached (Connection refused)" in network()


def test_a_proxy_that_answers_without_end_is_told(network, monkeypatch):
    with proxying(answer=b"\x1b[2J" + b"x" * 2**20) as proxy:
        monkeypatch.setenv("https_proxy", proxy.address)
        said = network()
    assert r"does not connect to localhost:" in said
    assert r"(\x1b[2Jxxx" in said
    assert len(said) < 500


@pytest.mark.parametrize(
    "address",
    ["https://proxy:3128", "http://ann:secret@proxy", "http://ann:secret/1@proxy:31", "http://ann:secret@[p:1"],
)
def test_a_proxy_that_nvflare_does_not_take_is_told_without_its_password(network, monkeypatch, address):
    monkeypatch.setenv("https_proxy", address)
    said = network()
    assert said.startswith("https_proxy: expected http://PROXY:PORT")
    assert "secret" not in said


def test_a_check_ends_with_what_only_the_server_knows(fedlit_cli, tmp_path, authority):
    with listening(tmp_path / "server", authority, authority.pair("localhost")) as port:
        folder = packed(tmp_path / "lead", authority, authority.pair("ann@example.org"), port)
        (folder / "startup" / "fed_client.json").unlink()
        admin = {"host": "localhost", "port": port, "server_identity": "localhost"}
        (folder / "startup" / "fed_admin.json").write_text(json.dumps({"admin": admin}))
        code, out, err = fedlit_cli(f"site check {folder}")
    assert code == 0, err
    refused = "unless the server's administrator has disabled 'ann@example.org': that was not checked"
    assert out.rstrip().endswith(f"ready to lead, {refused}")


def test_a_key_of_another_certificate_is_told(tmp_path, authority):
    folder = packed(tmp_path / "site", authority, authority.pair("north"), 1)
    authority.pair("south").write(tmp_path, "other")
    (folder / "startup" / "client.key").write_bytes((tmp_path / "other.key").read_bytes())
    with refusals.refused(ConfigError, "client.crt and client.key cannot be used together ("):
        list(kit_of(folder).checks())


def test_files_that_cannot_be_read_are_told(tmp_path, authority):
    folder = packed(tmp_path / "site", authority, authority.pair("north"), 1)
    for name, content in (("client.crt", "nothing"), ("fed_client.json", "{}")):
        (folder / "startup" / name).write_text(content)
        with refusals.refused(ConfigError, name):
            list(kit_of(folder).checks())


def test_without_nvflare_there_is_a_clear_answer(network, monkeypatch):
    monkeypatch.setattr(connection, "find_spec", lambda name: None)
    assert "NVFlare is not installed here" in network()
    assert "pip install 'fedlit[sites]'" in network()


def test_a_folder_without_a_certificate_has_no_kit(tmp_path):
    assert kit_of(tmp_path) is None
