"""Measure the overhead of rounds over NVFlare and the memory of each process: DenseNet121, ten rounds, two sites."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from flare_network import SERVER, Network  # noqa: E402

from fedlit.tracking.base import MetricsFile  # noqa: E402

ROUNDS = 10
KINDS = {
    "server_train": "server, NVFlare's process",
    "runner_process": "server, the job: fedlit's rounds",
    "client_train": "site, NVFlare's process",
    "worker_process": "site, the job: forwards messages",
    "forkserver": "site, fork server and the site's own process",
}


def memory(folder: Path) -> dict[str, list[float]]:
    """Return the proportional set size (PSS) of each process of the network, in megabytes."""
    parents, sizes = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1]), words
        except OSError:
            continue
    for pid, (_, words) in parents.items():
        above = pid
        while above in parents and str(folder) not in parents[above][1]:
            above = parents[above][0]
        kind = next((label for key, label in KINDS.items() if key in words), None)
        if above in parents and kind:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kilobytes = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            sizes.setdefault(kind, []).append(kilobytes / 1024)
    return sizes


def main() -> None:
    """Run ten rounds and print times and memory."""
    folder = Path(tempfile.mkdtemp(prefix="fedlit-nvflare-"))
    network = Network.provision(folder)
    data = {
        "class_path": "PhantomCXR",
        "init_args": {
            "hospitals": 2, "images": 80, "image_size": 32, "batch_size": 4, "cache_dir": str(folder / "cache")
        },
    }  # fmt: skip
    for number, site in enumerate(network.sites, 1):
        options = {
            "share": f"{number} of 2",
            "state": str(folder / site),
            "policy": {"floors": None},
        }  # rounds of eight images
        network.write_site(site, data=data, accelerator="cpu", **options)
    server = {"run_dir": str(folder / "runs"), "logger": False, "accelerator": "cpu"}
    (network.workspace(SERVER) / "local" / "fedlit-server.yaml").write_text(yaml.safe_dump(server))
    schedule = {"class_path": "ConstantSchedule", "init_args": {"window": 2, "unit": "steps"}}
    settings = {
        "data": data,
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "densenet121", "pretrained": False}},
        "federation": {"rounds": ROUNDS, "schedule": schedule, "eval_every": ROUNDS, "workers": 1},
        "fabric": {"accelerator": "cpu"},
    }
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(settings))
    fit = "fit", "--config", str(file), "--name", "one"
    peak: dict[str, list[float]] = {}
    try:
        network.start()
        command = subprocess.Popen(
            [sys.executable, "-m", "fedlit", *fit, "--sites", str(network.lead)], cwd=folder, env=os.environ
        )
        while command.poll() is None:
            for kind, sizes in memory(network.folder).items():
                peak[kind] = [max(pair) for pair in zip(sorted(sizes), sorted(peak.get(kind, sizes)), strict=False)]
            time.sleep(0.5)
    finally:
        network.stop()
    run = folder / "runs" / "default" / "one"
    rows = list(MetricsFile(run / "metrics.csv").rows())
    rounds = {step: value for step, key, value in rows if key == "time/round_s"}
    work: dict[int, float] = {}
    for step, key, value in rows:
        if key.startswith("client/") and key.endswith("/seconds"):
            work[step] = max(value, work.get(step, 0.0))
    print(f"{SERVER}: seconds per round, and of the slower site's work in it")
    for step, seconds in rounds.items():
        print(f"  round {step}: {seconds:.2f} s, {work.get(step, float('nan')):.2f} s")
    for kind, sizes in peak.items():
        print(f"{kind}: {', '.join(f'{value:.0f}' for value in sizes)} MB")


if __name__ == "__main__":
    main()
