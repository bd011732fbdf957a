"""Addresses of stores: what may be shown and kept of them, and where the rest comes from."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import yaml

from fedlit.core.errors import ConfigError

MARK = "***"
"""Stands in a configuration in the place of a credential."""

WEB = ("http", "https", "ws", "wss")
"""Schemes in which a user without a password may be a token."""

HARMLESS = {
    "application_name", "cache", "charset", "connect_timeout", "driver", "immutable", "isolation_level", "mode", "nolock",
    "read_timeout", "schema", "sslmode", "timeout", "uri", "vfs", "write_timeout",
}  # fmt: skip
"""Options behind the ``?`` of an address that are no secret; any other one may be."""

USER, PASSWORD, TOKEN, URI = (
    f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN", "URI")
)  # fmt: skip
"""Variables from which MLflow and fedlit take an address and its credentials."""

LOCAL = ("file", "sqlite")
"""Schemes of files of this machine, whose paths may hold any sign."""

_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]+)(://?)([^\s'\"<>]+)")
_WHOLE = re.compile(r"([A-Za-z][\w+.-]+)(://?)(.+)", re.DOTALL)
_OPTION = re.compile(r"([?&#;])([^=&#;?/]+)=([^&#;]*(?:[&#;][^=&#;]*(?=[&#;]|$))*)")


def without_credentials(text: str, mark: str = "") -> str:
    """Remove user, password and secret options of every address in a text.

    A password may hold ``@``, ``/``, ``?`` and ``#``: where an address has one, all up to its last ``@`` goes.

    Args:
        text: An address, or any text.
        mark: What stands in the place of each credential; with "" an option goes with its name.
    """
    return _ADDRESS.sub(lambda found: _bare(*found.groups(), mark), text)


def marked(config: str) -> str:
    """Put `MARK` in the place of every credential in a YAML text, which stays as it is elsewhere."""
    if ":/" not in config:
        return config
    for node in reversed(list(scalars(yaml.compose(config)))):
        # A value that begins as an address is one to its end: a password may hold a blank.
        whole = _WHOLE.fullmatch(node.value)
        hidden = _bare(*whole.groups(), MARK) if whole else without_credentials(node.value, MARK)
        if hidden != node.value:
            start, end = node.start_mark.index, node.end_mark.index
            line_end = "\n" if config[start:end].endswith("\n") else ""
            config = f"{config[:start]}{json.dumps(hidden, ensure_ascii=False)}{line_end}{config[end:]}"
    return config


def hidden(text: str, address: str) -> str:
    """Remove the credentials of one address from a text, also where the text holds but a part of them."""
    parts = re.split(r"[:@/?#&=;]", _secrets(address))
    for part in sorted({*parts, *map(unquote, parts)}, key=len, reverse=True):
        if len(part) > 3:
            text = text.replace(part, MARK)
        elif part:  # too short to tell it from a part of a word
            text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", MARK, text)
    return without_credentials(text)


def lacks_credentials(address: object) -> bool:
    """Tell whether an address stood in a configuration from which its credentials were removed."""
    return isinstance(address, str) and bool(
        re.search(rf":/{{1,2}}{re.escape(MARK)}@|={re.escape(MARK)}(?=$|[&#;])", address)
    )


def completed(key: str, address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Give an address with the credentials that its configuration does not hold, from the environment.

    A web server's user, password and token are MLflow's own to take: the address then comes back without any.

    Raises:
        ConfigError: The environment does not have them; says what is missing.
    """
    if not lacks_credentials(address):
        return address
    if without_credentials(environment.get(URI, ""), MARK) == address:
        return environment[URI]
    web, shown = address.startswith(("http://", "https://")), without_credentials(address)
    if web and (environment.get(TOKEN) or (environment.get(USER) and environment.get(PASSWORD))):
        return shown
    if web and environment.get(USER):
        raise ConfigError(f"--{key}: {PASSWORD} is missing in the environment, {USER} is there; {shown} needs both")
    variables = f"set {USER} and {PASSWORD}, or {TOKEN}, or {URI}" if web else f"set {URI} to the whole address"
    raise ConfigError(
        f"--{key}: the credentials for {shown} are missing, as no configuration of a run holds any; {variables} in the "
        f"environment, or give the address again: --{key} ADDRESS"
    )


def absolute(uri: str) -> str:
    """Give a SQLite URI with the absolute path of its file; any other URI as it is.

    Raises:
        ConfigError: The name of the working directory would mean another file, or none, in an address.
    """
    path = uri.removeprefix("sqlite:///")
    if path == uri or path.startswith(("/", ":memory:", "file:")):
        return uri
    if odd := re.search(r"\?|%[0-9A-Fa-f]{2}", Path.cwd().as_posix()):
        raise ConfigError(
            f"{uri} cannot be a file of the working directory {Path.cwd()}, as {odd[0]} in its name means something else "
            "in the address of a database: rename the directory, or name a store in another one "
            "(sqlite:////FOLDER/mlflow.db), or use none (--logger false)"
        )
    return f"sqlite:///{Path(path).absolute().as_posix()}"


def absent(uri: str) -> str:
    """Say ``there is no file ...`` of a SQLite URI whose file is not there; "" otherwise."""
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or file.is_file():
        return ""
    return f"there is no file {file}" + ("" if file.is_absolute() else f" in {Path.cwd()}")


def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield everything below a node of YAML that is a word, keys included, in the order of the text."""
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    for child in node.value if node is not None else ():
        for part in child if isinstance(child, tuple) else (child,):
            yield from scalars(part)


def _bare(scheme: str, slashes: str, rest: str, mark: str) -> str:
    """An address in its three parts, without credentials."""
    if scheme.lower() in LOCAL:
        return f"{scheme}{slashes}{rest}"
    start = _user_end(scheme, rest)
    user = f"{mark}@" if start and mark else ""
    options = _OPTION.sub(lambda found: _option(*found.groups(), mark), rest[start:])
    if "?" not in options and "?" in rest[start:]:
        options = options.replace("&", "?", 1)
    return f"{scheme}{slashes}{user}{options}"


def _user_end(scheme: str, rest: str) -> int:
    """Where user and password end in what follows ``scheme://``: 0 where there is no secret."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    if ":" in (user if at else host):  # with a slash in a password, what looks like a host is its beginning
        return rest.rfind("@") + 1
    return len(user) + 1 if at and (scheme.lower() in WEB or user == MARK) else 0


def _option(separator: str, name: str, value: str, mark: str) -> str:
    if name.lower() in HARMLESS or not value:
        return f"{separator}{name}={value}"
    return f"{separator}{name}={mark}" if mark else ""


def _secrets(address: str) -> str:
    """Password and the values of secret options of an address, in one text."""
    parts = _WHOLE.fullmatch(address)
    if parts is None or parts[1].lower() in LOCAL:
        return ""
    end = _user_end(parts[1], parts[3])
    values = [value for _, name, value in _OPTION.findall(parts[3][end:]) if name.lower() not in HARMLESS]
    user = parts[3][:end]
    return "@".join([user.partition(":")[2] or user, *values])
