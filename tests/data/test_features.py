"""Features of a frozen body, computed once: the same numbers as the body gives on the images each time."""

import multiprocessing
import os

import numpy as np
import pandas as pd
import pytest
import torch
from hospital_source import ready
from runs import Place
from shades import CLASSES, IMAGES, Shades, cached, fabric, model
from simulation import simulate
from torch import nn
from toys import ToyData

from fedlit.data.pictures.features import LabelledFeatures, with_fixed_features
from fedlit.data.pictures.images import LabelledImages
from fedlit.federation.evaluation import evaluate_sets, validate
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.schedules import ConstantSchedule


@pytest.fixture
def data(tmp_path) -> Shades:
    return ready(Shades(cache_dir=str(tmp_path)))


def as_seen_by(body: nn.Module, images: LabelledImages) -> torch.Tensor:
    with torch.no_grad():
        return body.eval()(torch.stack([images[i][0] for i in range(len(images))]))


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-4), ("64-true", 1e-12)])
def test_training_gives_the_same_numbers_as_on_images(precision, tolerance, tmp_path, monkeypatch):
    """A class of the test's own would run its frozen body on images too, but be tried in training before the run."""
    ends = []
    for fixed_features in (None, ImageClassifier.fixed_features):
        monkeypatch.setattr(ImageClassifier, "fixed_features", fixed_features)
        assert not cached(tmp_path)
        data = Shades(cache_dir=str(tmp_path))
        federation = Federation(rounds=2, schedule=ConstantSchedule(4, "steps"))
        metrics: list[dict[str, float]] = []

        def evaluate(s, metrics=metrics):
            metrics.append({})
            validate(s.session, s.session.broadcast(s.server, s.session.round(0)), metrics[-1])

        end = simulate(model(hidden=16), data, federation, precision, evaluate)
        ends.append((end.server.w, evaluate_sets(end.session, end.server, "test"), metrics))
    (w, tests, metrics), (w2, tests2, metrics2) = ends
    torch.testing.assert_close(w, w2, rtol=tolerance, atol=tolerance / 10)
    for scores, scores2 in zip(tests["federation"], tests2["federation"], strict=True):
        torch.testing.assert_close(scores.scores, scores2.scores, rtol=tolerance, atol=tolerance / 10)
        torch.testing.assert_close(scores.labels, scores2.labels, equal_nan=True)
    for one, other in zip(metrics, metrics2, strict=True):
        assert one["val/auroc_macro"] == pytest.approx(other["val/auroc_macro"])
        assert one["val/loss"] == pytest.approx(other["val/loss"], rel=tolerance)


def test_each_part_has_its_own_rows_labels_and_names(data):
    module = model()
    few = LabelledImages(
        data._read().store, [7, 3, 7], np.eye(3, 2), ["a", "b", "c"], groups={"sex": np.array([*"FMF"])}
    )
    data.test_sets["few"] = few
    clients, test_sets = with_fixed_features(module, data, fabric())
    pairs = [
        (getattr(clients[n], part), getattr(d, part))
        for n, d in data.clients.items()
        for part in ("train", "val", "test")
    ]
    for found, images in [*pairs, (test_sets["few"], data.test_sets["few"])]:
        assert isinstance(found, LabelledFeatures)
        assert len(found) == len(images) > 0
        assert found.names.tolist() == images.names.tolist()
        assert found.groups == images.groups
        everything = found.batch(torch.arange(len(found)))
        torch.testing.assert_close(everything[1], images.labels, equal_nan=True)
        torch.testing.assert_close(everything[0], as_seen_by(module.body, images), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1][0], everything[0][1])
    assert data.clients["client-01"].train.store is not None  # the data themselves stay as they were


def test_standardised_features_are_those_of_the_frozen_network(data):
    module = model(features="standardised")
    layer = module.body.fc
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    clients, _ = with_fixed_features(module, data, fabric())
    found = clients["client-01"].train.batch(torch.arange(4))[0]
    wanted = as_seen_by(module.body, data.clients["client-01"].train)[:4]
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    layer.running_mean += 1
    others, _ = with_fixed_features(module, data, fabric())
    moved = found - others["client-01"].train.batch(torch.arange(4))[0]
    torch.testing.assert_close(moved, (layer.running_var + layer.eps).rsqrt().expand_as(moved), rtol=1e-4, atol=1e-5)


class TestCache:
    def test_a_second_use_reads_it(self, data, tmp_path):
        with_fixed_features(model(), data, fabric())
        (folder,) = cached(tmp_path)
        file = folder / "array.npy"
        assert np.load(file).shape == (IMAGES, 128)
        assert {path.name for path in folder.iterdir()} == {"array.npy", "rows.npy"}
        os.utime(file, (1, 1))
        again = ready(Shades(cache_dir=str(tmp_path)))
        with_fixed_features(model(), again, fabric())
        assert cached(tmp_path) == [folder]
        assert file.stat().st_mtime == 1

    def test_another_body_or_normalisation_gives_another_file(self, data, tmp_path):
        with_fixed_features(model(), data, fabric())
        with_fixed_features(model(seed=1), data, fabric())
        assert len(cached(tmp_path)) == 2
        other_statistics = model()
        next(m for m in other_statistics.body.modules() if isinstance(m, nn.BatchNorm2d)).running_mean += 1
        with_fixed_features(other_statistics, data, fabric())
        assert len(cached(tmp_path)) == 3
        brighter = Shades(cache_dir=str(tmp_path))
        brighter.mean = 0.1
        brighter.setup()
        with_fixed_features(model(), brighter, fabric())
        assert len(cached(tmp_path)) == 4
        headed = model(hidden=8)  # the head has no part in it
        headed.body.load_state_dict(model().body.state_dict())
        with_fixed_features(headed, data, fabric())
        assert len(cached(tmp_path)) == 4

    def test_two_processes_compute_it_once(self, tmp_path):
        """Both start without it; only one runs the body."""
        context = multiprocessing.get_context("fork")
        barrier, counts = context.Barrier(2), context.Queue()
        processes = [context.Process(target=_count_passes, args=(str(tmp_path), barrier, counts)) for _ in range(2)]
        for process in processes:
            process.start()
        found = sorted(counts.get(timeout=60) for _ in processes)
        for process in processes:
            process.join(60)
        assert found == [(0, 128), (1, 128)]
        assert len(cached(tmp_path)) == 1


def _count_passes(folder: str, barrier, counts) -> None:
    """Return how often the body ran in this process, and the width of the features that it got."""
    data, module, passes = Shades(cache_dir=folder), model(), []
    data.setup()
    module.body.register_forward_hook(lambda *_: passes.append(1))
    barrier.wait(60)
    clients, _ = with_fixed_features(module, data, fabric())
    counts.put((len(passes), clients["client-01"].train[0][0].numel()))


def test_augmented_images_a_trained_body_and_other_data_sets_are_left_alone(data, tmp_path):
    augmented = ready(Shades(augment=True, cache_dir=str(tmp_path)))
    assert with_fixed_features(model(), augmented, fabric()) == (augmented.clients, augmented.test_sets)
    whole = ImageClassifier(CLASSES, backbone="small_cnn")
    assert with_fixed_features(whole, data, fabric()) == (data.clients, data.test_sets)
    toys = ready(ToyData())
    clients, _ = with_fixed_features(model(), toys, fabric())
    assert all(clients[name].train is toys.clients[name].train for name in toys.clients)


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    """Two workers give the bits of one; predict reads the same features."""
    options = (
        f"--data data.test_features.Shades --data.cache_dir {tmp_path / 'cache'} --model ImageClassifier "
        "--model.backbone small_cnn --model.trainable head --federation.rounds 2"
    )
    place = Place(tmp_path / "runs", options)
    commands = [place.fit(f"--name {n} --federation.workers {n}") for n in ("1", "2")]
    for command in commands:
        assert command.wait() == 0, command.output
    one, two = place.run("1"), place.run("2")
    assert {n: t.tolist() for n, t in one.tensors().items()} == {n: t.tolist() for n, t in two.tensors().items()}
    assert one.metrics() == two.metrics()
    assert place.fit(f"--ckpt_path {one.path} --output {tmp_path / 'scores'}", "predict").wait() == 0
    assert len(cached(tmp_path / "cache")) == 1
    (file,) = (tmp_path / "scores").iterdir()
    table = pd.read_parquet(file)
    data = Shades()
    data.cache_dir = str(tmp_path / "cache")
    data.setup()
    assert sorted(table["image"]) == sorted(name for d in data.clients.values() for name in d.test.names)
    assert table[[f"score/{name}" for name in CLASSES]].to_numpy().min() > 0
