"""Run directories that are damaged, held by others or without credentials."""

import json
import os
from pathlib import Path

import pytest
from support.hostile import Refused, check_refused, each

RUN = "runs/default/r"
CONFIG, RESULT = f"{RUN}/config.yaml", f"{RUN}/result.json"
CHECKPOINT = {f"{RUN}/checkpoints/round-000001/manifest.json": "{}"}
RESUME, AGAIN = "fit --config tiny.yaml --ckpt_path last", f"--config tiny.yaml --ckpt_path {RUN}"

DAMAGED = {
    "binary": (b"\x80\x81\xff\x00", "cannot be read as YAML"),
    "a word": (b"seed\n", "found 'seed'"),
    "empty": (b"", "found 'None'"),
    "torn": (b"seed: 0\ndata:\n  class_path: PhantomCXR\n  init", "could not find expected ':'"),
}
"""Contents of a ``config.yaml``, and the words that must be said of each."""

NO_RESULT = {
    "binary": b"\xff\xfe\x00",
    "a list": b"[]",
    "without metrics": b'{"rounds": 1, "best_round": 1, "seconds": 2.0}',
    "with a list of metrics": b'{"metrics": []}',
}


def damaged(what: str, command: str, name: str) -> Refused:
    """Return a run whose configuration is damaged."""
    content, words = DAMAGED[what]
    files = CHECKPOINT | {CONFIG: content}
    return Refused(f"{name} of a run whose config.yaml is {what}", command, (CONFIG, words, "restore it"), files)


def held(what: str, command: str, run: str = RUN) -> Refused:
    """Return a run that another machine holds."""
    note = json.dumps({"pid": 4711, "host": "node-3", "started": "2026-01-02 03:04:05"})
    files = {f"{run}/.running.json": note, f"{run}/config.yaml": "{}\n",
             f"{run}/checkpoints/round-000001/manifest.json": "{}"}  # fmt: skip
    words = ("process 4711 on host node-3, since 2026-01-02 03:04:05", f"remove {run}/.running.json")
    return Refused(what, command, words, files)


MARKED = "logger: {class_path: MLflowTracker, init_args: {tracking_uri: 'http://***@HOST'}}\n"
PLACE = "logger.tracking_uri (c.yaml, line 1)"
MISSING = (PLACE, "expected the password for http://HOST", "${env:NAME}", "MLFLOW_TRACKING_PASSWORD")

INPUTS = [
    *(damaged(what, RESUME, "a resume") for what in DAMAGED),
    damaged("torn", f"test {AGAIN}", "a test"),
    damaged("empty", f"export {AGAIN}", "an export"),
    *(
        Refused(f"a result.json that is {what}", f"compare {RUN}", (RESULT, "Remove it", f"--ckpt_path {RUN}"),
                {CONFIG: "seed: 0\n", RESULT: content})
        for what, content in NO_RESULT.items()
    ),
    Refused("a run without a checkpoint", f"fit {AGAIN}", (f"--ckpt_path {RUN}", "no manifest.json"), {CONFIG: "{}\n"}),
    held("a resume of a run that another host holds", RESUME),
    held("a resume by name of a run that another host holds", f"fit {AGAIN}"),
    held("seeds whose first run another host holds", "fit --config tiny.yaml --seed 0,1 --name r",
        "runs/default/r,seed=0"),
    Refused("a resume without credentials", "fit --config tiny.yaml --config c.yaml", MISSING, {"c.yaml": MARKED}),
    Refused("a variable that is not set", "fit --config tiny.yaml --config c.yaml",
            (PLACE, "environment variable ABSENT_", "export ABSENT_="),
            {"c.yaml": MARKED.replace("***", "${env:ABSENT_}")}),
    Refused("a variable as a folder", "fit --config tiny.yaml --run_dir '${env:HOME}'",
            ("run_dir (command line)", "--run_dir $NAME")),
]  # fmt: skip


@each(INPUTS)
def test_it_is_refused_with_its_place(given, fedlit_cli, folder, monkeypatch: pytest.MonkeyPatch):
    for name in ("USERNAME", "PASSWORD", "TOKEN", "URI"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    check_refused(given, fedlit_cli)
    assert not list(folder.glob("runs/*/*/.wanted.yaml"))


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No folder for caches is set, so that a user's home is used."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch


def test_a_home_that_takes_nothing_is_named(fedlit_cli, folder, uncached):
    uncached.setenv("HOME", str(folder / "taken/home"))
    created = f"cannot create {folder}/taken/home/.cache/fedlit"
    words = ("data.cache_dir", created, "--data.cache_dir FOLDER", "XDG_CACHE_HOME")
    check_refused(Refused("home", "fit --config tiny.yaml", words, {"taken": ""}), fedlit_cli)
    assert not (folder / "runs").exists()


def test_a_user_without_a_home_is_told(fedlit_cli, folder, uncached):
    def nobody(path):
        raise RuntimeError("Could not determine home directory.")

    uncached.setattr("pathlib.Path.expanduser", nobody)
    words = ("data.cache_dir", "no home directory", "--data.cache_dir FOLDER")
    check_refused(Refused("nobody", "fit --config tiny.yaml", words), fedlit_cli)


@pytest.mark.parametrize(("name", "words"), [("home/.cache/fedlit", "data.cache_dir: cannot write images to"),
                                              ("runs", "is not writable; choose another folder")])  # fmt: skip
def test_a_folder_that_is_read_only_is_named(name, words, fedlit_cli, folder, uncached):
    uncached.setenv("HOME", str(folder / "home"))
    closed = folder / name
    closed.mkdir(parents=True)
    # Whoever runs the tests may be root, who is let in everywhere.
    may, closed_paths = os.access, (closed, Path(name))
    uncached.setattr(os, "access", lambda path, mode: Path(path) not in closed_paths and may(path, mode))
    check_refused(Refused("read-only", "fit --config tiny.yaml", (words, name)), fedlit_cli)
    assert [*closed.iterdir()] == []
