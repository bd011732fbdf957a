"""NVFlare reads JSON alone once this has been called in a process.

NVFlare also reads HOCON and YAML, whose includes and variables are resolved in the reading process: files, addresses
and the environment of the server would be in reach of anyone who writes a job.
"""

from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory

EXTENSIONS = (".json", ".json.default")
"""Ends of the names of files that NVFlare may read."""


def read_json_only() -> None:
    """Make NVFlare find and read no other configurations than JSON."""
    ConfigFactory._fmt2Loader = {ConfigFormat.JSON: ConfigFactory._fmt2Loader[ConfigFormat.JSON]}
    ConfigFormat.config_ext_formats = classmethod(lambda cls: dict.fromkeys(EXTENSIONS, ConfigFormat.JSON))
