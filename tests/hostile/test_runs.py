"""Run directories that are damaged, held by others or without credentials."""

import json
import os
from pathlib import Path

import pytest
from support.hostile import Refused, check_refused, each

RUN = "runs/default/r"
CONFIG, RESULT, NOTE = f"{RUN}/config.yaml", f"{RUN}/result.json", f"{RUN}/.running.json"
CHECKPOINT = {f"{RUN}/checkpoints/round-000001/manifest.json": "{}"}
RESUME, AGAIN = "fit --config tiny.yaml --ckpt_path last", f"--config tiny.yaml --ckpt_path {RUN}"

DAMAGED = {
    "binary": (b"\x80\x81\xff\x00", "cannot be read as YAML"),
    "with NUL": (b"a\x00b", "cannot be read as YAML"),
    "a list": (b"- a\n", "expected the keys of a configuration, found"),
    "a word": (b"seed\n", "expected the keys of a configuration, found 'seed'"),
    "empty": (b"", "expected the keys of a configuration, found 'None'"),
    "torn": (b"seed: 0\ndata:\n  class_path: PhantomCXR\n  init", "could not find expected ':'"),
    "a folder": (None, "cannot be read as YAML"),
}
"""Contents of a ``config.yaml``, and the words that must be said of each."""

NO_RESULT = {
    "torn": b'{\n "rounds": 1,\n "best',
    "binary": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"3",
    "empty": b"",
    "without metrics": b'{"rounds": 1, "best_round": 1, "seconds": 2.0}',
    "with other keys": b'{"metrics": {}, "epochs": 1}',
    "with a list of metrics": b'{"metrics": []}',
}


def damaged(what: str, command: str, name: str) -> Refused:
    """Return a run whose configuration is damaged."""
    content, words = DAMAGED[what]
    file = {CONFIG: content} if content is not None else {f"{CONFIG}/x": ""}
    return Refused(
        f"{name} of a run whose config.yaml is {what}", command, (CONFIG, words, "restore it"), CHECKPOINT | file
    )


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
DATABASE = MARKED.replace("http://***@HOST", "mysql://***@HOST/db")
SWEEP = "experiment: s\nconfig: [tiny.yaml, c.yaml]\n"

INPUTS = [
    *(damaged(what, RESUME, "a resume") for what in DAMAGED if what != "a folder"),
    *(damaged(what, f"test {AGAIN}", "a test") for what in ("binary", "torn", "empty")),
    *(damaged(what, f"export {AGAIN}", "an export") for what in ("binary", "torn", "empty")),
    *(
        Refused(f"a comparison with a config.yaml that is {what}", f"compare {RUN}", (CONFIG, words),
                {CONFIG: content, RESULT: '{"rounds": 1, "best_round": 1, "seconds": 1.0, "metrics": {}}'})
        for what, (content, words) in DAMAGED.items() if content is not None
    ),
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
    Refused("several seeds without credentials", "fit --config tiny.yaml --config c.yaml --seed 0,1", MISSING,
            {"c.yaml": MARKED}),
    Refused("a sweep without credentials", "sweep --config s.yaml", MISSING, {"c.yaml": MARKED, "s.yaml": SWEEP},
        code=2),
    Refused("a database without credentials", "fit --config tiny.yaml --config c.yaml",
            (PLACE, "the password for mysql://HOST/db", "write ${env:NAME}"),
            {"c.yaml": DATABASE}),
    Refused("several seeds with a password", "fit --config tiny.yaml --config c.yaml --seed 0,1",
            (PLACE, "${env:NAME} in place of the password for http://HOST"), {"c.yaml": MARKED.replace("***", "a:b")}),
    Refused("a variable that is not set", "fit --config tiny.yaml --config c.yaml",
            (PLACE, "environment variable ABSENT_", "export ABSENT_="),
            {"c.yaml": MARKED.replace("***", "${env:ABSENT_}")}),
    Refused("a variable in a list", "fit --config tiny.yaml --config c.yaml",
            ("logger.0.tracking_uri (c.yaml, line 3)", "environment variable ABSENT_"),
            {"c.yaml": "logger:\n- class_path: MLflowTracker\n  init_args: {tracking_uri: 'a${env:ABSENT_}'}\n"}),
    Refused("a variable without a name", "fit --config tiny.yaml --model.weights '${env:}'",
            ("model.weights (command line)", "${env:NAME}", "found ${env:}")),
    Refused("a variable as a folder", "fit --config tiny.yaml --run_dir '${env:HOME}'",
            ("run_dir (command line)", "--run_dir $NAME")),
    Refused("an artifact location with a password",
            "fit --config tiny.yaml --logger MLflowTracker --logger.artifact_location ftp://anna:geheim@HOST/x",
            ("artifact_location", "ftp://HOST/x", "without credentials")),
]  # fmt: skip


@each(INPUTS)
def test_it_is_refused_in_words(given, fedlit_cli, folder, monkeypatch: pytest.MonkeyPatch):
    for name in ("USERNAME", "PASSWORD", "TOKEN", "URI"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    check_refused(given, fedlit_cli)
    assert not list(folder.glob("runs/*/*/.wanted.yaml"))


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No folder for caches is set, so that a user's home is used."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch


@pytest.mark.parametrize("home", ["taken/home", "/proc/home"])
def test_a_home_that_takes_nothing_is_named(home, fedlit_cli, folder, uncached):
    uncached.setenv("HOME", str(folder / home))
    created = f"cannot create {folder / home}/.cache/fedlit"
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
