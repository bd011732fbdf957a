"""The values of a configuration from which objects are made: those of the environment, and no mark of a password."""

from jsonargparse import Namespace

from fedlit.core.errors import ConfigError
from fedlit.core.system.environment import REFERENCE, from_environment, resolve
from fedlit.tracking.addresses import lacks_credentials, masked, without_credentials

AS_WRITTEN = ("config", "tags")
"""Keys whose values are only written down."""

FOLDERS = ("run_dir", "ckpt_path")
"""Keys that files and the terminal name, so that nothing of the environment may be in them."""


def opened(args: Namespace, several: bool = False) -> Namespace:
    """Return a copy of a configuration with what the environment holds; ``several`` runs read it from files.

    Raises:
        ConfigError: A variable or a password is missing; names the key.
    """

    def open_text(key: str, text: str) -> str:
        shown = without_credentials(text)
        if lacks_credentials(text):
            web = f", or write {shown} and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise ConfigError(
                f"{key}: expected the password for {shown}, found none, because no file contains passwords; write "
                f"${{env:NAME}} in its place and set NAME in the environment, or pass the address with --{key}"
                + (web if shown.startswith("http") else "")
            )
        if several and masked(text) != text:
            raise ConfigError(
                f"{key}: expected ${{env:NAME}} in place of the password for {shown}, found the password itself, but "
                "several runs read their configuration from files, which contain none; set NAME in the environment"
            )
        return from_environment(key, text)

    for key in FOLDERS:
        if REFERENCE.search(str(args.get(key))):
            raise ConfigError(
                f"{key}: expected the name of a folder, found {args[key]}, which would tell a value of the environment;"
                f" write the folder, or --{key} $NAME on the command line"
            )
    values = {key: value if key in AS_WRITTEN else resolve(value, key, open_text) for key, value in vars(args).items()}
    return Namespace(**values)
