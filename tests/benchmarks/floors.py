"""Measure what a server that chooses weights, model and optimizer learns from a site in spite of its floors.

    python tests/benchmarks/floors.py
    python tests/benchmarks/floors.py --quick

The site is a separate process with the file that ``fedlit site init`` writes. Images are the NIH X-rays in
``../shared/data`` if they exist, otherwise those of PhantomCXR. The command prints a Markdown table for each attack.
"""

import argparse
import copy
import csv
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from attacker import write_site  # noqa: E402
from trap import LR, Server, Trap, answered  # noqa: E402

from fedlit.core.batches import BatchStream  # noqa: E402
from fedlit.data import NIHChestXray14, PhantomCXR  # noqa: E402
from fedlit.data.clients import parts_of  # noqa: E402
from fedlit.data.federated import FederatedDataModule  # noqa: E402
from fedlit.data.partition import ByPatient  # noqa: E402
from fedlit.metrics.auroc import auroc  # noqa: E402
from fedlit.metrics.tally import bin_of  # noqa: E402
from fedlit.sites.messages import FAILED, Evaluated, Sent, new_run  # noqa: E402
from fedlit.sites.own_data import OwnData, read_settings  # noqa: E402

NIH, TABLE = HERE.parents[1] / ".." / "shared" / "data" / "nih-cxr14-mini", "Data_Entry_2017_v2020.csv"

SEED = 0
"""Seed of the plans, and so of the order of a site's images."""

SIZE, HOSPITAL = 224, 300
"""Width of an image in pixels, and images of the hospital: about 210 to train, 30 to validate, 60 to test."""

VIT, SMALL = "vit_small_patch32_224", "lcnet_035"
"""Backbones of timm: one with 22 million weights to read images, and a small one for other attacks."""

STEP = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "steps"}}


@dataclass
class Hospital:
    """A site and its private data.

    Attributes:
        server: The attacker.
        images, labels: Training images [n, 1, S, S] and their labels [n, C].
        hidden: Classes that the site hides in its training set.
        told: Classes that it reports.
        public: Images of other patients [m, 1, S, S], which the attacker has from another source.
        foreign: Labels of the public images.
    """

    server: Server
    images: Tensor
    labels: Tensor
    hidden: list[int]
    told: list[int]
    public: Tensor
    foreign: Tensor

    def first(self, count: int) -> Tensor:
        """Return the first ``count`` training images of the first round."""
        return BatchStream(Positions(len(self.images)), count, SEED, self.server.client)[0]


class Positions:
    """A data set of its own indices."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor) -> Tensor:
        """Return the indices."""
        return indices


def open_hospital(folder: Path, augment: bool = False) -> Hospital:
    """Write a hospital's folder and start its process."""
    real = NIH.is_dir()
    options = {"image_size": SIZE, "augment": augment, "seed": 3}
    if real:
        roots = [folder / "hospital", folder / "public"]
        divide(*roots)
        one = {"class_path": "ByPatient", "init_args": {"clients": 1}}
        data = {"class_path": "NIHChestXray14", "init_args": options | {"root": str(roots[0]), "partition": one}}
        other = NIHChestXray14(roots[1], partition=ByPatient(1), image_size=SIZE, cache_dir=str(folder / "elsewhere"))
    else:
        data = {"class_path": "PhantomCXR", "init_args": options | {"hospitals": 1, "images": HOSPITAL}}
        other = PhantomCXR(
            hospitals=1, images=2 * HOSPITAL, image_size=SIZE, seed=71, cache_dir=str(folder / "elsewhere")
        )
    server = Server(write_site(folder / "north", data))
    site_info = server.site_info
    server.client = site_info.clients[0].name
    own = OwnData(read_settings(server.file)).module
    images, labels = plain(own, ["train"])
    other.prepare_data()
    other.setup("fit")
    gone = [column for column, count in enumerate(site_info.clients[0].counts["train"][0]) if count is None]
    told = [column for column in range(len(site_info.classes)) if column not in gone]
    return Hospital(server, images, labels, gone, told, *plain(other, ["train", "val", "test"]))


def divide(hospital: Path, public: Path) -> None:
    """Copy the NIH images to two folders without common patients."""
    rows = list(csv.reader((NIH / TABLE).open()))
    patients = sorted({row[3] for row in rows[1:]})
    order = torch.randperm(len(patients), generator=torch.Generator().manual_seed(SEED)).tolist()
    ours: set[str] = set()
    for number in order:
        if sum(row[3] in ours for row in rows[1:]) < HOSPITAL:
            ours.add(patients[number])
    for folder, mine in ((hospital, True), (public, False)):
        (folder / "images").mkdir(parents=True)
        kept = [row for row in rows[1:] if (row[3] in ours) == mine]
        with (folder / TABLE).open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *kept])
        for row in kept:
            shutil.copy(NIH / "images" / row[0], folder / "images")


def plain(data: FederatedDataModule, wanted: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return images and labels of some parts, without augmentation."""
    images, labels = [], []
    for client in data.clients.values():
        for name, part in parts_of(client):
            if name in wanted:
                part = copy.copy(part)
                part.augment = None
                batch = part.batch(range(len(part)))
                images.append(batch[0])
                labels.append(batch[1])
    return torch.cat(images), torch.cat(labels)


# Images


def likeness(one: Tensor, other: Tensor) -> Tensor:
    """Return the pixel-wise correlation [n, m] of each image of one set with each of another."""
    flat = [F.normalize((images - images.mean((1, 2, 3), keepdim=True)).flatten(1), dim=1) for images in (one, other)]
    return flat[0] @ flat[1].T


@dataclass
class Found:
    """Images that were reconstructed from one or several rounds.

    Attributes:
        images: [m, 1, S, S].
        labels: [m, C] in {0, 1}, or None.
    """

    images: Tensor
    labels: Tensor | None = None

    def row(self, what: str, hospital: Hospital, seen: Tensor) -> str:
        """Compare the images with the training images of the round, and return a row of the table."""
        correlation = likeness(hospital.images[seen], self.images)
        best, which = correlation.max(1).values, correlation.argmax(1)
        right = "-"
        if self.labels is not None:
            same = (self.labels[which] == hospital.labels[seen]).all(1) & (best > 0.99)
            right = f"{int(same.sum())}"
        counts = f"{int((best > 0.9).sum())} | {int((best > 0.99).sum())} | {right}"
        return f"| {what} | {len(seen)} | {counts} | {best.max():.4f} | {best.median():.4f} |"


HEAD = (
    "| round | images in it | read, r > 0.9 | r > 0.99 | with all labels | best r | median r |\n"
    "|---|---|---|---|---|---|---|"
)


def read_round(
    hospital: Hospital, number: int = 0, only: int | None = None, vector: str = "w", rate: float = LR, **plan: Any
) -> Found:
    """Reconstruct images from one round of the site."""
    server = hospital.server
    server.begin(VIT, rate, **plan)
    trap = Trap(server, hospital.public, number)
    trap.read_all() if only is None else trap.read_only(only)
    control = {"0/c": torch.zeros_like(server.model.w)} if plan.get("aggregators") else {}
    answer = answered(server.train(**control))
    images, factors = trap.images(answer.tensors()[f"vectors/{vector}"])
    if only is not None or vector != "w" or plan.get("schedule") != STEP:
        return Found(images)
    classes = hospital.labels.shape[1]
    code = (1 - factors.abs() / trap.unit(hospital.public[0], plan["batch_size"])) * (2**classes - 1)
    return Found(images, code.round().long()[:, None].bitwise_and(2 ** torch.arange(classes)).bool().float())


def images_table(folder: Path, hospital: Hospital, quick: bool) -> None:
    """Print how well images are reconstructed from updates."""
    everyone, first = torch.arange(len(hospital.images)), hospital.first(64)
    one_step = {"batch_size": 64, "schedule": STEP}
    print(HEAD)
    print(read_round(hospital, **one_step).row("one step of 64", hospital, first), flush=True)
    if not quick:
        eight = {"batch_size": 8, "schedule": {**STEP, "init_args": {"window": 8, "unit": "steps"}}}
        order = BatchStream(Positions(len(everyone)), 8, SEED, hospital.server.client)
        seen = torch.cat([order[step] for step in range(8)])
        print(read_round(hospital, **eight).row("8 steps of 8", hospital, seen), flush=True)
        fast, few = read_round(hospital, rate=1.0, **eight), order[0]
        print(fast.row("8 steps of 8 at a learning rate of 1, the first 8 images", hospital, few), flush=True)
        rounds = [read_round(hospital, number, batch_size=16) for number in range(3)]
        print(rounds[0].row("one epoch, batches of 16", hospital, everyone), flush=True)
        joined = Found(torch.cat([each.images for each in rounds]))
        print(joined.row("three such rounds, another number of the image each", hospital, everyone), flush=True)
        rare = min(hospital.hidden, key=lambda column: abs(int(hospital.labels[:, column].sum()) - 5))
        seen = (hospital.labels[:, rare] == 1).nonzero()[:, 0]
        found, name = read_round(hospital, only=rare, batch_size=16), hospital.server.classes[rare]
        print(found.row(f"one epoch, only the positives of {name}, which is hidden", hospital, seen), flush=True)
        control = read_round(hospital, vector="0/c", aggregators=["Scaffold"], **one_step)
        print(control.row("one step of 64, the control variate of Scaffold alone", hospital, first), flush=True)
        other = open_hospital(folder / "augmented", augment=True)
        print(read_round(other, **one_step).row("one step of 64, augmented images", other, other.first(64)), flush=True)
        other.server.close()
    public = Found(hospital.public)
    print(public.row("no round: the most similar X-ray of another patient", hospital, everyone))
    refused = hospital.server.prepare(run=new_run(), batch_size=1)
    assert refused.verb == FAILED
    print(f"\nBelow the floor, one step of 1: refused ({refused.content['reason']})")


# Counts


def counts_table(hospital: Hospital) -> None:
    """Print the classes whose numbers of positives follow from a round or an evaluation."""
    server, labels = hospital.server, hospital.labels
    examples, classes = labels.shape
    truth, names = (labels == 1).sum(0), server.classes
    server.begin(SMALL, 1.0, batch_size=examples)
    head, bias = server.weights["head.weight"], server.weights["head.bias"]
    with torch.no_grad():
        head.zero_()
        bias.zero_()
    answer = answered(server.train())
    change = server.parts(answer.tensors()["vectors/w"])["head.bias"].double()
    of_bias = (change * examples * classes + examples / 2).round().long()
    of_loss = torch.zeros(classes, dtype=torch.long)
    for pair in torch.arange(classes).split(2):
        server.begin(SMALL, 1e-9, batch_size=examples)
        chosen = torch.zeros(classes)
        chosen[pair] = torch.tensor([1.0, examples + 1.0])[: len(pair)]  # so that both counts follow from one sum
        with torch.no_grad():
            server.weights["head.weight"].zero_()
            server.weights["head.bias"].copy_(chosen)
        loss = answered(server.train()).message(Sent).report.loss
        both = round((float(F.softplus(chosen.double()).sum()) - loss * classes) * examples)
        of_loss[pair] = torch.tensor([both % (examples + 1), both // (examples + 1)])[: len(pair)]
    scored = answered(server.evaluate(at=1, accepted=1, part="train"))
    of_view, logged = scored.tensors()["positives"].sum(1), scored.message(Evaluated).logged
    print("\n| from | classes told | classes hidden |\n|---|---|---|")
    attacks = {
        "change of the head's bias, one round": of_bias,
        "training loss, one round for two classes": of_loss,
        "evaluation of the whole training set: histograms": of_view,
    }
    for what, counts in attacks.items():
        parts = [sum(counts[c] == truth[c] for c in columns) for columns in (hospital.told, hospital.hidden)]
        if counts is of_view:
            parts[1] = sum(counts[c] > 0 for c in hospital.hidden)
        print(f"| {what} | {parts[0]} of {len(hospital.told)} exactly | {parts[1]} of {len(hospital.hidden)} exactly |")
    said = ", ".join(logged) or "nothing"
    print(f"\nLosses of that evaluation: {said}. Hidden: {', '.join(names[column] for column in hospital.hidden)}.")


# Histograms


def histograms_table(hospital: Hospital, rounds: int) -> None:
    """Print what histograms reveal about images that the server has from another source."""
    server, told = hospital.server, hospital.told
    candidates = torch.cat([hospital.images, hospital.public])
    members = torch.arange(len(candidates)) < len(hospital.images)
    possible = torch.ones(len(candidates), dtype=torch.bool)
    known = torch.zeros(len(candidates), len(told), dtype=torch.bool)
    wrong = 0
    server.begin(VIT, LR, batch_size=16)
    print("\n| evaluations | its images found | others taken for its images | all labels told of | wrong labels |")
    print("|---|---|---|---|---|")
    for at in range(rounds):
        trap = Trap(server, hospital.public, at)
        trap.show_number()
        tensors = answered(server.evaluate(at=at, part="train", accepted=None)).tensors()
        bins = bin_of(2 * trap.number_of(candidates))
        positives, negatives = (tensors[name][told][:, bins].T for name in ("positives", "negatives"))
        possible &= (positives + negatives > 0).all(1)
        sure = (positives > 0) != (negatives > 0)
        known |= sure
        truth = hospital.labels[:, told] == 1
        wrong += int((sure[members] & ((positives[members] > 0) != truth)).sum())
        complete = int(known[members].all(1).sum())
        found, false = int(possible[members].sum()), int(possible[~members].sum())
        shares = f"{found} of {int(members.sum())} | {false} of {int((~members).sum())}"
        print(f"| {at + 1} | {shares} | {complete} | {wrong} |", flush=True)


# Membership


def membership_table(hospital: Hospital, rounds: int) -> None:
    """Print how well an honest server can distinguish training images from others by updates only."""
    server, few = hospital.server, 150
    images = torch.cat([hospital.images[:few], hospital.public[:few]])
    labels = torch.cat([hospital.labels[:few], hospital.foreign[:few]])
    member = (torch.arange(2 * few) < few).float()[:, None]
    server.begin(SMALL, 0.1, batch_size=16, norm="group")
    module, total = server.model.module, torch.zeros(2 * few)
    print("\n| rounds | AUROC by gradients | AUROC by the loss at the end |\n|---|---|---|")
    for index in range(rounds):
        w, change = server.model.w, answered(server.train(index)).tensors()["vectors/w"]
        losses = torch.zeros(2 * few)
        for i in range(2 * few):
            loss = module.training_step((images[i : i + 1], labels[i : i + 1]), 0)
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, server.model.parameters)])
            total[i] -= gradient @ change / gradient.norm()
            losses[i] = loss.detach()
        w += change
        if index + 1 in (1, rounds // 2, rounds):
            by = [float(auroc(scores[:, None], member)) for scores in (total, -losses)]
            print(f"| {index + 1} | {by[0]:.2f} | {by[1]:.2f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of images, the counts, and one evaluation")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        hospital = open_hospital(Path(made) / "plain")
        shown = "NIH ChestX-ray14" if NIH.is_dir() else "PhantomCXR"
        print(f"\nImages: {shown}, {SIZE} pixels; {len(hospital.images)} train at the site.\n")
        images_table(Path(made), hospital, quick)
        counts_table(hospital)
        histograms_table(hospital, 1 if quick else 4)
        if not quick:
            membership_table(hospital, 10)
        answers = hospital.server.ledger()
        print(f"\nThe site's ledger: {len(answers)} lines, {sum(bool(line['refused']) for line in answers)} refused.")
        hospital.server.close()


if __name__ == "__main__":
    main()
