"""The command line can be imported without the modules of Unix, as on Windows."""

import subprocess
import sys

import pytest

IMPORTS = """
import gc, importlib, os, pkgutil, signal, sys

gc.disable()
for module in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[module] = None
for module, names in (
    (os, ("fork", "getuid", "killpg", "posix_fallocate", "sched_getaffinity", "setsid")),
    (signal, ("SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask")),
):
    for name in names:
        delattr(module, name)

import fedlit

# These modules import NVFlare, whose packages ask which system this is and then want what it has.
over_nvflare = ("fedlit.sites.flare", "fedlit.sites.follower", "fedlit.sites.jobs")
imported = []
for module in pkgutil.walk_packages(fedlit.__path__, "fedlit."):
    if module.name not in ("fedlit.__main__", *over_nvflare):
        imported.append(importlib.import_module(module.name).__name__)
print(*imported)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_without_the_modules_of_unix():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"fedlit.cli.main", "fedlit.experiment.sweep", "fedlit.federation.engines.pool"} <= {*done.stdout.split()}
