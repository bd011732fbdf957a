"""NVFlare accepts no other jobs than those that ``write_job`` writes, once this module is imported in a process.

NVFlare also reads HOCON and YAML, whose includes and variables are resolved in the reading process: files, addresses
and the environment of the server or of a site would be in reach of anyone who writes a job. It replaces ``{NAME}`` in
JSON, and unpacks archives of any size. NVFlare's own process at the server and at a site imports this module at its
start, because ``resources.json`` names ``Apps``.
"""

from pathlib import Path
from zipfile import ZipFile

from nvflare.apis.app_validation import AppValidator
from nvflare.fuel.utils import zip_utils
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.sites.submission import JOB_FILES, SERVER_APP, SITE_APP, check_meta, check_server, check_site

EXTENSIONS = (".json", ".json.default")
"""Ends of the names of files that NVFlare may read."""

LARGEST = 4_000_000
"""Bytes of a job's files together."""

SIGNATURES = {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE}
"""Files that NVFlare adds to each folder of a job: the signatures of the lead."""


class Apps(AppValidator):
    """Component of NVFlare that checks the part of a job for the server or for a site before it starts.

    Args:
        server: Whether this is the server.
    """

    def __init__(self, server: bool) -> None:
        super().__init__()
        self._files, self._check = (SERVER_APP, check_server) if server else (SITE_APP, check_site)

    def validate(self, app_folder: str) -> tuple[str, dict]:
        """Return what is wrong with the files that NVFlare has unpacked, or an empty message."""
        root = Path(app_folder)
        try:
            _check_names({str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}, self._files)
            self._check(documents.parse_json((root / self._files[0]).read_text()))
        except (ConfigError, ValueError, OSError) as error:
            return f"job: {error}", {}
        return "", {}


def _check_names(names: set[str], expected: tuple[str, ...]) -> None:
    own = {name for name in names if name.rpartition("/")[2] not in SIGNATURES}
    if own != set(expected):
        raise ConfigError(
            f"expected the files {', '.join(expected)}, found {', '.join(sorted(own))[:200] or 'none'}; submit jobs "
            "with `fedlit fit --sites`"
        )


def _check_size(archive: ZipFile) -> None:
    if (size := sum(entry.file_size for entry in archive.infolist())) > LARGEST:
        raise ValueError(f"job: expected at most {LARGEST:,} bytes of files, found {size:,}")


def _submitted(self: JobMetaValidator, job_name: str, archive: ZipFile) -> dict:
    """Check a job that a lead submits before NVFlare reads it; a refused upload is removed."""
    try:
        _check_size(archive)
        files = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
        _check_names(files, tuple(f"{job_name}/{name}" for name in JOB_FILES))
        check_meta(documents.parse_json(archive.read(f"{job_name}/{JOB_FILES[0]}").decode()))
    except (ConfigError, ValueError) as error:
        if archive.filename:
            Path(archive.filename).unlink(missing_ok=True)
        raise ValueError(str(error)) from error
    return _validate_job(self, job_name, archive)


def _unpacked(archive: ZipFile, folder: str) -> None:
    """Check the size of an archive before NVFlare unpacks it."""
    _check_size(archive)
    _validate_entries(archive, folder)


_validate_job, _validate_entries = JobMetaValidator._validate_zf, zip_utils._validate_zip_entries
JobMetaValidator._validate_zf, zip_utils._validate_zip_entries = _submitted, _unpacked
ConfigFormat.config_ext_formats = classmethod(lambda cls: dict.fromkeys(EXTENSIONS, ConfigFormat.JSON))
