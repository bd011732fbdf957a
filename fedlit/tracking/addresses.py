"""Addresses of stores, and the removal of credentials from them."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedlit.core.errors import ConfigError
from fedlit.core.system.environment import REFERENCE, from_environment, hide, resolve

MARK = "***"
"""Replacement of a credential in a configuration."""

WEB = ("http", "https", "ws", "wss")
"""Schemes in which a user without a password may be a token."""

HARMLESS = {
    "application_name", "cache", "charset", "connect_timeout", "driver", "immutable", "isolation_level", "mode",
    "nolock", "read_timeout", "schema", "sslmode", "timeout", "uri", "vfs", "write_timeout",
}  # fmt: skip
"""Options after the ``?`` of an address that are not secret; all others may be."""

URI = "MLFLOW_TRACKING_URI"
"""Environment variable from which MLflow and fedlit read an address."""

DATABASE = "sqlite:///mlflow.db"
"""Default address of MLflow's store."""

LOCAL = ("file", "sqlite")
"""Schemes of local files, whose paths may contain any character."""

_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]+)(://?)([^\s'\"<>]+)")
_WHOLE = re.compile(r"([A-Za-z][\w+.-]+)(://?)(.+)", re.DOTALL)
_OPTION = re.compile(r"([?&#;])([^=&#;?/]+)=([^&#;]*(?:[&#;][^=&#;]*(?=[&#;]|$))*)")


def without_credentials(text: str, mark: str = "") -> str:
    """Remove user, password and secret options from every address in a text.

    A password may contain ``@``, ``/``, ``?`` and ``#``: if an address has one, everything up to its last ``@`` is
    removed. With a ``mark``, it replaces each credential; without one, options are removed with their names.
    """
    return _ADDRESS.sub(lambda match: _bare(*match.groups(), mark), text)


def showable(text: str) -> str:
    """Return a text for the terminal, without credentials and without values of the environment."""
    return without_credentials(hide(text))


def masked(value: Any) -> Any:
    """Return a copy of a configuration with `MARK` in place of every credential; ``${env:NAME}`` stays."""
    return resolve(value, text=_masked)


def hidden(text: str, address: str) -> str:
    """Remove the credentials of one address from a text, even if the text contains only a part of them."""
    parts = re.split(r"[:@/?#&=;]", _secrets(address))
    for part in sorted({*parts, *map(unquote, parts)}, key=len, reverse=True):
        if len(part) > 3:
            text = text.replace(part, MARK)
        elif part:  # short: remove whole words only
            text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", MARK, text)
    return showable(text)


def lacks_credentials(address: object) -> bool:
    """Check if an address has `MARK` in place of a credential."""
    mark = re.escape(MARK)
    return isinstance(address, str) and bool(re.search(rf":/{{1,2}}{mark}@|={mark}(?=$|[&#;])", address))


def store_address(named: str | None = None) -> str:
    """Return the address of MLflow's store: the named one, else that of the environment, else `DATABASE`.

    Raises:
        ConfigError: The named one has a reference to a variable that is not set.
    """
    return (named and from_environment("tracking_uri", named)) or os.environ.get(URI) or DATABASE


def absolute(uri: str) -> str:
    """Return a SQLite URI with the absolute path of its file, and any other URI unchanged.

    Raises:
        ConfigError: The name of the working directory has a special meaning in an address.
    """
    path = uri.removeprefix("sqlite:///")
    if path == uri or path.startswith(("/", ":memory:", "file:")):
        return uri
    if odd := re.search(r"\?|%[0-9A-Fa-f]{2}", Path.cwd().as_posix()):
        raise ConfigError(
            f"{uri}: the name of the working directory {Path.cwd()} contains {odd[0]}, which has a special meaning "
            "in the address of a database; rename the directory, use a store in another one "
            "(sqlite:////FOLDER/mlflow.db), or none (--logger false)"
        )
    return f"sqlite:///{Path(path).absolute().as_posix()}"


def absent(uri: str) -> str:
    """Return ``there is no file ...`` if the file of a SQLite URI does not exist, otherwise ""."""
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or file.is_file():
        return ""
    return f"there is no file {file}" + ("" if file.is_absolute() else f" in {Path.cwd()}")


def _masked(_: str, text: str) -> str:
    # A value that starts with an address is an address to its end, because passwords may contain blanks.
    whole = _WHOLE.fullmatch(text)
    return _bare(*whole.groups(), MARK) if whole else without_credentials(text, MARK)


def _bare(scheme: str, slashes: str, rest: str, mark: str) -> str:
    """Return an address, given in three parts, without credentials."""
    if scheme.lower() in LOCAL:
        return f"{scheme}{slashes}{rest}"
    start = _user_end(scheme, rest)
    user = f"{mark}@" if start and mark else ""
    options = _OPTION.sub(lambda match: _option(*match.groups(), mark), rest[start:])
    if "?" not in options and "?" in rest[start:]:
        options = options.replace("&", "?", 1)
    return f"{scheme}{slashes}{user}{options}"


def _user_end(scheme: str, rest: str) -> int:
    """Return the length of user and password after ``scheme://``, or 0 if there is no secret."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    known = REFERENCE.sub("", user)  # what is written besides references
    if at and known != user and not known.partition(":")[2]:
        return 0
    if ":" in (user if at else host):  # a password with a slash starts like a host
        return rest.rfind("@") + 1
    return len(user) + 1 if at and (scheme.lower() in WEB or user == MARK) else 0


def _option(separator: str, name: str, value: str, mark: str) -> str:
    if name.lower() in HARMLESS or not value or REFERENCE.fullmatch(value):
        return f"{separator}{name}={value}"
    return f"{separator}{name}={mark}" if mark else ""


def _secrets(address: str) -> str:
    """Return the password and the values of secret options of an address, joined by ``@``."""
    parts = _WHOLE.fullmatch(address)
    if parts is None or parts[1].lower() in LOCAL:
        return ""
    end = _user_end(parts[1], parts[3])
    values = [value for _, name, value in _OPTION.findall(parts[3][end:]) if name.lower() not in HARMLESS]
    user = parts[3][:end]
    return "@".join([user.partition(":")[2] or user, *values])
