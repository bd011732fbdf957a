"""Measure the errors of the tests that `fedlit compare` adds for a study.

    python tests/benchmarks/joining.py margin    # type-I error and power of the margin test
    python tests/benchmarks/joining.py gains     # false claims of the gains of sites and of their summary

Every rate is a percentage with its standard error. `--trials` is the number of comparisons per rate. Scores are those
of `claims.py`: binormal, with noise that images, methods and runs have in common.
"""

import argparse

import numpy as np
from claims import CLASSES, DRAWS, _method, rate, redrawn, simulated
from scipy.special import ndtri

from fedlit.reports.compare.alignment import Shared
from fedlit.reports.compare.joining import MethodGains, _corrected, _gains, _summarised
from fedlit.reports.compare.margin import margin_tests
from fedlit.reports.compare.statistics import statistics

MARGIN = 0.02


def margin(trials: int) -> None:
    """Print how often a method is called not worse whose true loss is the margin, and whose true loss is 0."""
    print(f"% of {trials} reports; nominal type-I error 2.5 (one-sided); margin {MARGIN}")
    for draw in (simulated, redrawn):
        for seeds, sd, images in ((3, 0.01, 320), (5, 0.01, 1000), (5, 0.03, 320), (5, 0.03, 1000)):
            errors, powers = [], []
            for trial in range(trials):
                for loss, found in ((MARGIN, errors), (0.0, powers)):
                    rng = np.random.default_rng((trial, seeds, images))
                    shared, named = draw(rng, 1, seeds, sd, images, -loss)
                    (test,) = margin_tests(statistics(named, named[0], shared, draws=DRAWS), MARGIN)
                    found.append(test.conclusion.startswith("not worse"))
            where = f"{draw.__name__}, {seeds} seeds, SD {sd}, {images} images"
            print(f"{where:46} type-I {rate(errors)}   power {rate(powers)}", flush=True)


def at_sites(rng: np.random.Generator, sites: int, seeds: int, sd: float, tau: float, images: int) -> list[MethodGains]:
    """Draw a federation without a mean gain: each training of it, and of each own model, moves all AUROCs.

    Args:
        rng: Generator.
        sites: Number of sites.
        seeds: Seeds of each model.
        sd: Standard deviation of a training's AUROC. Half of the variance of a federation's training is common to all
            sites.
        tau: Standard deviation of the true gain over sites.
        images: Test images of a site, each of one patient.
    """
    together, gains = sd * 0.5**0.5 * rng.normal(size=seeds), {}
    method, own = _method("federated", range(seeds)), _method("own", range(seeds))
    for site in range(sites):
        federated = 0.8 + tau * rng.normal() + together + sd * 0.5**0.5 * rng.normal(size=seeds)
        truth = np.clip(np.concatenate([0.8 + sd * rng.normal(size=seeds), federated]), 0.52, 0.985)
        labels = np.stack([rng.permutation(images) < share * images for share in (0.15, 0.2, 0.3)], 1)
        shape = (2 * seeds, *labels.shape)
        of_model = rng.normal(size=(2, *labels.shape))[np.arange(2 * seeds) // seeds]
        noise = 0.5**0.5 * rng.normal(size=labels.shape) + 0.5 * of_model + 0.5 * rng.normal(size=shape)
        scores = noise + 2**0.5 * ndtri(truth)[:, None, None] * labels
        names, nothing = np.arange(images).astype(str), np.zeros(3, dtype=bool)
        shared = Shared(CLASSES[:3], labels.astype(np.float32), names, tuple(scores), nothing, [])
        gains |= _gains(f"site {site}", statistics([own, method], own, shared, draws=DRAWS))
    return list(_summarised([MethodGains(method, tuple(_corrected(gains).values()), (), None)], 0.95, []))


def gains(trials: int) -> None:
    """Print how often a site's gain, and the mean gain, is claimed without any, and how often its interval covers 0."""
    print(
        f"% of {trials} reports without a mean gain: a site's gain claimed / the mean gain claimed / interval covers 0"
    )
    for sites, seeds, sd, tau, images in (
        (3, 3, 0.02, 0.0, 300), (8, 3, 0.02, 0.0, 300), (8, 5, 0.02, 0.0, 300), (8, 3, 0.005, 0.0, 300),
        (3, 3, 0.02, 0.03, 300), (8, 3, 0.02, 0.03, 300), (8, 5, 0.005, 0.03, 300),
    ):  # fmt: skip
        claims, means, covered = [], [], []
        for trial in range(trials):
            rng = np.random.default_rng((trial, sites, seeds))
            (found,) = at_sites(rng, sites, seeds, sd, tau, images)
            claims.append(any(each.gain.claimed for each in found.home))
            means.append(found.summary.p_holm < 0.05)
            covered.append(found.summary.interval.low < 0 < found.summary.interval.high)
        where = f"{sites} sites, {seeds} seeds, SD {sd}, tau {tau}"
        shown = rate(claims) if tau == 0 else "      (true)"  # with tau, the gains of single sites are real
        print(f"{where:40} {shown} / {rate(means)} / {rate(covered)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("margin", "gains"))
    parser.add_argument("--trials", type=int, default=400)
    args = parser.parse_args()
    {"margin": margin, "gains": gains}[args.what](args.trials)
