"""What runs with different test sets and label sets are compared on."""

from dataclasses import replace

import numpy as np
import torch
from past_runs import CLASSES, predictions
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.reports.compare.alignment import share


def test_runs_are_brought_to_the_images_that_they_share_in_one_order() -> None:
    one, other = predictions(1.0, 0, 20), predictions(2.0, 1, 20)
    backwards = other.take(np.arange(17, 4, -1))
    shared = share(["a", "b"], [one, backwards])
    np.testing.assert_array_equal(shared.labels, one.labels[5:18])
    np.testing.assert_array_equal(shared.scores[0], one.scores[5:18])
    np.testing.assert_array_equal(shared.scores[1], other.scores[5:18])
    np.testing.assert_array_equal(shared.patients, one.patients[5:18])
    assert shared.notes == ["7 of the 20 test images of a are not in all runs."]


def test_a_class_that_one_run_lacks_is_left_out_by_name() -> None:
    one, other = predictions(1.0, 0, 20), predictions(1.0, 1, 20, ("Nodule", "Effusion"))
    other = replace(other, labels=one.labels[:, [2, 0]])
    shared = share(["a", "b"], [one, other])
    assert shared.classes == ("Effusion", "Nodule")
    np.testing.assert_array_equal(shared.scores[1], other.scores[:, [1, 0]])
    assert shared.notes == ["Mass: left out, as it is not labelled, or not learned, in b."]


def test_labels_that_only_one_run_knows_do_not_count() -> None:
    one, other = predictions(1.0, 0, 20), predictions(1.0, 1, 20)
    other.labels[:8, 1] = torch.nan
    other.scores[:8, 1] = torch.nan
    shared = share(["a", "b"], [one, other])
    assert np.isnan(shared.labels[:8, 1]).all()
    assert np.isnan(shared.labels).sum() == 8
    assert shared.notes == ["Some labels are left out, as only some runs know or score them: Mass 8."]


def test_images_that_are_labelled_otherwise_are_left_out() -> None:
    one, other = predictions(1.0, 0, 20), predictions(1.0, 1, 20)
    other.labels[3, 0] = 1 - other.labels[3, 0]
    other.patients[5] = "another"
    shared = share(["a", "b"], [one, other])
    np.testing.assert_array_equal(shared.labels, np.delete(one.labels.numpy(), [3, 5], axis=0))
    assert shared.notes == ["2 images are left out, as their labels or patients differ between runs."]


def test_image_ids_of_different_sites_may_be_equal() -> None:
    found = predictions(1.0, 0, 20)
    ids = np.array([f"{n % 10}" for n in range(20)])
    sites = np.repeat(["A", "B"], 10)
    both = [replace(found, images=ids, sites=sites)] * 2
    assert len(share(["a", "b"], both).labels) == 20
    with refused(ConfigError, "twice, so images cannot be paired between runs"):
        share(["a", "b"], [replace(each, sites=found.sites) for each in both])


def test_runs_with_nothing_in_common_are_refused() -> None:
    one, other = predictions(1.0, 0, 20), predictions(1.0, 1, 20)
    with refused(ConfigError, "'i0000'", "'x0'"):
        share(["a", "b"], [one, replace(other, images=np.array([f"x{n}" for n in range(20)]))])
    with refused(ConfigError, "'north/0'"):
        share(["a", "b"], [one, replace(other, images=np.array([f"north/{n}" for n in range(20)]))])
    parts = [one.take(rows) for rows in (range(20), range(8), range(8, 20))]
    with refused(ConfigError, "no image"):
        share(["a", "b", "c"], parts)
    parts = [one.take(rows) for rows in ([0, 1], [1, 2], [2, 0])]
    with refused(ConfigError, "no image"):
        share(["a", "b", "c"], parts)
    with refused(ConfigError, "all images that the runs share by id have other labels or"):
        share(["a", "b"], [one, replace(other, patients=np.array([f"x{n}" for n in range(20)]))])
    with refused(ConfigError, "a has", "b has Fracture"):
        share(["a", "b"], [one, predictions(1.0, 1, 20, ("Fracture",))])
    known = [(np.arange(20) < 10), (np.arange(20) >= 10)]
    apart = [replace(one, labels=torch.where(torch.tensor(rows)[:, None], one.labels, torch.nan)) for rows in known]
    with refused(ConfigError, "no image has a label and a score of the same class in all"):
        share(["a", "b"], apart)


def test_scores_that_are_not_finite_are_refused() -> None:
    infinite = predictions(1.0, 0, 20)
    infinite.scores[0, 0] = torch.inf
    with refused(ConfigError, "b"):
        share(["a", "b"], [predictions(1.0, 0, 20), infinite])


def test_classes_without_a_shared_label_are_named() -> None:
    one, other = predictions(1.0, 0, 20), predictions(1.0, 1, 20)
    one.labels[:10, 1], other.labels[10:, 1] = torch.nan, torch.nan
    shared = share(["a", "b"], [one, other])
    assert shared.classes == (CLASSES[0], CLASSES[2])
    assert "Mass: left out, as no image is labelled and scored in all runs." in shared.notes
