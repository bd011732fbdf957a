"""PhantomCXR: a synthetic chest X-ray set of several hospitals, made from a seed."""

import hashlib
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError
from fedlit.core.ranges import NonNegativeInt, Probability, Within
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes
from fedlit.data.partition import ByOrganisation, Partition
from fedlit.data.phantom.drawing import draw_images
from fedlit.data.phantom.exposure import render
from fedlit.data.phantom.hospitals import FINDINGS, Hospital, default_hospitals
from fedlit.data.phantom.patients import Cohort, sample_cohort
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records

_VERSION = "1"  # part of the cache key: raise it when pixels change


class PhantomCXR(FederatedDataModule):
    """Synthetic frontal chest X-rays of several hospitals with ten findings, fully labelled.

    Each finding is visible with a random severity, findings co-occur, and the one to three images of a patient share
    anatomy. The images depend only on the hospitals, the seed and the size.

    Args:
        hospitals: A list of hospitals, or the number of built-in hospitals.
        images: Number of images of all hospitals together, if ``hospitals`` is a number.
        heterogeneity: Scale of the differences of the built-in hospitals in size, prevalences and image style: from 0
            (they differ only in their patients) to 2.
        label_scheme: Classes that the built-in hospitals label: ``full`` for all, ``split`` for ``shared_classes`` that
            all hospitals label, and others that one hospital labels. Test sets keep all labels.
        shared_classes: Number of classes that all hospitals label if ``label_scheme`` is ``split``, from 0 to 10.
        prevalence: Share of positive images of every finding at every built-in hospital, for data of one imbalance; by
            default findings and hospitals have their own shares, from 4 to 58% with ``heterogeneity: 2``.
        classes: The findings to use, in this order; by default all ten. A binary method needs exactly one.
        partition: The rule that gives each record to a client; by default each hospital is a client.
        image_size: Height and width of the images in pixels, at least 8.
        seed: Seed of the images, of the patient split and of the partition, at least 0.
        **kwargs: Further arguments of FederatedDataModule.
    """

    def __init__(
        self,
        hospitals: int | list[Hospital] = 3,
        images: int = 3000,
        heterogeneity: Annotated[float, Within("[0, 2]")] = 1.0,
        label_scheme: Literal["full", "split"] = "full",
        shared_classes: Annotated[int, Within("[0, 10]")] = 4,
        prevalence: Probability | None = None,
        classes: list[str] | None = None,
        partition: Partition | None = None,
        image_size: int = 64,
        seed: NonNegativeInt = 0,
        **kwargs,
    ):
        super().__init__(partition or ByOrganisation(), image_size=image_size, seed=seed, **kwargs)
        if isinstance(hospitals, int):
            hospitals = default_hospitals(hospitals, images, heterogeneity, label_scheme, shared_classes, prevalence)
        names = [hospital.name for hospital in hospitals]
        if not names or len(set(names)) < len(names):
            raise DataError(f"data.hospitals: expected one or more different names, found {names}")
        self.hospitals = tuple(hospitals)
        self.drawn = frozenset((hospital.name, seed) for hospital in hospitals)
        self.classes = FINDINGS if classes is None else checked_classes(classes, FINDINGS)
        self._site_classes = {
            hospital.name: tuple(name for name in hospital.classes if name in self.classes)
            for hospital in hospitals
            if hospital.classes is not None
        }
        idle = [name for name, labelled in self._site_classes.items() if not labelled]
        if idle:
            raise DataError(f"data.classes: hospital {idle[0]!r} labels none of {[*self.classes]}")

    def records(self) -> Records:
        """Draw the images into the cache, unless they exist."""
        cohorts = [sample_cohort(hospital, self.seed) for hospital in self.hospitals]
        site = np.repeat([hospital.name for hospital in self.hospitals], [h.images for h in self.hospitals])
        number = np.concatenate([np.arange(hospital.images) for hospital in self.hospitals])
        person = np.concatenate([cohort.patient for cohort in cohorts])
        at = site.tolist()  # Python's own texts and numbers are formatted twice as fast as NumPy's
        names = np.array([f"{name}-{index:06d}" for name, index in zip(at, number.tolist(), strict=True)])
        patients = np.array([f"{name}-p{index:06d}" for name, index in zip(at, person.tolist(), strict=True)])

        def write(out: np.ndarray) -> None:
            start = 0
            for hospital, cohort in zip(self.hospitals, cohorts, strict=True):
                part = out[start : start + hospital.images]
                render(hospital, cohort, self.image_size, self.seed, part, draw=partial(self.draw, hospital, cohort))
                start += hospital.images

        columns = [FINDINGS.index(name) for name in self.classes]
        shape = (len(names), 1, self.image_size, self.image_size)
        return Records(
            store=ImageStore.cached(self.key(), shape, write, self.cache_dir),
            names=names,
            labels=np.concatenate([cohort.labels for cohort in cohorts])[:, columns],
            classes=self.classes,
            patients=patients,
            sites=site,
            site_classes=self._site_classes,
            table=pd.DataFrame({"image": names, "patient": patients, "hospital": site}),
        )

    def draw(self, hospital: Hospital, cohort: Cohort, part: slice) -> np.ndarray:
        """Return the densities of some images of a cohort, float32 [n, H, W], before the hospital's equipment."""
        return draw_images(cohort.anatomy[part], cohort.severity[part], self.image_size)

    def key(self) -> str:
        """Return the name of the images in the cache, which changes whenever a pixel changes."""
        parts = [_VERSION, self.seed, self.image_size]
        for hospital in self.hospitals:
            drawn = asdict(hospital)
            drawn["prevalence"] = sorted(hospital.prevalence.items())
            del drawn["classes"]  # what a hospital labels changes no pixel
            parts.append(drawn)
        return f"phantom-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"
