"""The placement of images does not change any result."""

import itertools
import threading
from collections.abc import Sequence

import pytest
import torch
from engine_rounds import everything, opened, played, run, scored
from lightning.pytorch import LightningModule
from pictures import Small, data
from refusals import refused
from runs import assert_same_tensors
from torch import Tensor
from torchvision.transforms import v2

from fedlit.aggregators import Aggregator, ClientContext, Scaffold
from fedlit.core.batches import BatchStream, Draws, ReadAhead
from fedlit.core.errors import ConfigError, DataError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.data.partition import ByOrganisation
from fedlit.data.pictures.augmentation import PerImage, XrayAugmentation
from fedlit.data.pictures.images import ImageStore, LabelledImages
from fedlit.federation import devices
from fedlit.federation.devices import Placement, placed, resolve_placement
from fedlit.federation.engines import base
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule

GPU = torch.device("cuda", 0)


def fields(given: GivenClients):
    return given.clients, given.test_sets


def play(
    given: GivenClients, module: LightningModule, workers: int = 1, aggregators: Sequence[Aggregator] = (Scaffold(),)
) -> dict[str, Tensor]:
    """Every tensor of three rounds and of an evaluation."""
    federation = Federation(list(aggregators), rounds=3, participation=0.7, schedule=ConstantSchedule(3, "steps"))
    with opened(federation, module, given, workers) as (made, _):
        losses = []
        server = played(made, after=lambda server, reports: losses.extend(report.loss for report in reports))
        return everything(made, server) | scored(made, server) | {"losses": torch.tensor(losses)}


def test_a_federation_has_the_same_bits_wherever_the_pictures_lie(tmp_path, monkeypatch):
    torch.manual_seed(1)
    given, module = data(tmp_path, XrayAugmentation()), Small()
    mapped = play(given, module)
    for name, workers in (("resident", 1), ("ahead", 1), ("ahead", 2)):
        monkeypatch.setattr(devices, "resolve_placement", lambda *given, name=name: Placement(name))
        assert_same_tensors(play(given, module, workers), mapped)


@pytest.mark.parametrize("job", [1, 3])
def test_batches_are_taken_in_a_thread_one_ahead_and_the_next_clients_first(tmp_path, monkeypatch, job):
    """Of nine batches, the training thread reads only the first."""
    given, taken, take = data(tmp_path, XrayAugmentation()), [], LabelledImages.take

    def noted(images: LabelledImages, rows: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(threading.current_thread() is threading.main_thread())
        return take(images, rows)

    monkeypatch.setattr(devices, "resolve_placement", lambda *given: Placement("ahead"))
    monkeypatch.setattr(base, "JOBS", 3 // job)
    with opened(Federation(schedule=ConstantSchedule(3, "steps")), Small(), given) as (made, server):
        made.engine._pool.worker.local.watched = True  # which reads a batch once more
        monkeypatch.setattr(LabelledImages, "take", noted)
        run(made, server)
    assert sorted(taken) == [False] * 8 + [True]


class Curious(Aggregator):
    """Draws two batches before its steps, and one more after each."""

    def on_client_round_start(self, ctx: ClientContext) -> None:
        ctx.scratch["first"] = [ctx.next_batch() for _ in range(2)]

    def on_after_optimizer_step(self, ctx: ClientContext, batches: list) -> None:
        ctx.w.add_(ctx.next_batch()[0].mean(), alpha=0.01)


def test_an_algorithm_that_draws_more_than_its_steps_gets_the_batches_in_their_order(tmp_path, monkeypatch):
    module, given = Small(), data(tmp_path, XrayAugmentation())
    mapped = play(given, module, aggregators=[Curious()])
    monkeypatch.setattr(devices, "resolve_placement", lambda *given: Placement("ahead"))
    assert_same_tensors(play(given, module, aggregators=[Curious()]), mapped)


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_wanted(tmp_path):
    images = data(tmp_path).clients["one"].train
    ahead = ReadAhead(torch.device("cpu"))
    stream = BatchStream(images, 4, 0, "one", ahead=ahead)
    draws = Draws(stream, 0, 5)
    draws.next()
    images.indices = images.indices + 1000
    draws.next()  # was taken before
    with pytest.raises(IndexError):
        draws.next()


def test_each_store_is_copied_once(tmp_path):
    clients, test_sets = placed(*fields(data(tmp_path, XrayAugmentation())), "resident", torch.device("cpu"))
    sets = [part for client in clients.values() for part in (client.train, client.val)] + [test_sets["test"]]
    assert len({id(part.store) for part in sets}) == 2
    assert not any(isinstance(part.store, ImageStore) for part in sets)
    assert clients["one"].test is None


def test_data_of_ones_own_and_images_augmented_one_by_one_stay_where_they_are(tmp_path):
    single = data(tmp_path, PerImage(v2.Compose([v2.RandomRotation(9)])))
    clients, _ = placed(*fields(single), "resident", torch.device("cpu"))
    assert clients["one"].train is single.clients["one"].train
    foreign = GivenClients({"one": [(torch.zeros(3), torch.zeros(2))] * 4})
    clients, _ = placed(*fields(foreign), "resident", torch.device("cpu"))
    assert clients["one"].train is foreign.clients["one"].train


def test_pictures_go_to_a_gpu_where_they_fit(tmp_path, monkeypatch):
    given, size = fields(data(tmp_path, XrayAugmentation())), 53 * 144
    for copies, free, name in ((1, size / 0.6 + 1, "resident"), (1, size, "ahead"), (2, size / 0.6 + 1, "ahead")):
        monkeypatch.setattr(devices, "free_memory", lambda device, free=free: free)
        found = resolve_placement("auto", GPU, *given, copies)
        assert found.name == name
        assert ("do not fit into 60% of the" in found.notice) == (name == "ahead")
    assert resolve_placement("cpu", GPU, *given) == Placement("ahead")
    for wanted, device in itertools.product(("auto", "cpu"), ("cpu", "mps")):
        assert resolve_placement(wanted, torch.device(device), *given) == Placement()


def test_what_cannot_be_copied_is_read_ahead_and_refused_only_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda device: 1e12)
    single = fields(data(tmp_path, PerImage(v2.Compose([v2.RandomRotation(9)]))))
    foreign = fields(GivenClients({"one": [(torch.zeros(3), torch.zeros(2))] * 4}))
    for given, reason in ((single, "PerImage augments on the CPU; use auto"), (foreign, "not in an image store")):
        assert resolve_placement("auto", GPU, *given) == Placement("ahead")
        with refused(ConfigError, "cuda:0", reason):
            resolve_placement("cuda", GPU, *given)
    with refused(ConfigError, "cpu"):
        resolve_placement("cuda", torch.device("cpu"), *single)


def test_bad_values_are_refused_in_words():
    with refused(DataError, "device", "'auto' or 'cpu' or 'cuda'", "'gpu'"):
        FederatedDataModule(ByOrganisation(), device="gpu")
