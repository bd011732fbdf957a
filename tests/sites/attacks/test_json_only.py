"""NVFlare reads a job's configuration as JSON alone where fedlit is imported: no HOCON, whose includes read files."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("nvflare")

READ = """
import sys
import fedlit.sites.flare
from nvflare.fuel.utils.config_factory import ConfigFactory
found = ConfigFactory.load_config("meta.json", [sys.argv[1]])
print("nothing" if found is None else found.to_dict())
"""


def read(folder) -> str:
    made = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
    return made.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("ending", ["conf", "yml", "yaml", "conf.default", "yaml.default"])
def test_a_job_in_another_language_is_not_read(tmp_path, ending):
    (tmp_path / f"meta.{ending}").write_text('name: "${?HOME}"' if ending.startswith("y") else "name = ${?HOME}")
    assert read(tmp_path) == "nothing"


def test_json_is_read_beside_a_file_in_another_language(tmp_path):
    (tmp_path / "meta.conf").write_text("name = ${?HOME}")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "fedlit"}))
    assert read(tmp_path) == "{'name': 'fedlit'}"
