"""The data of a federation as its sites have told of them: names and numbers, and no image."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np
import pandas as pd
from torch.utils.data import Dataset

from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientData, State
from fedlit.data.clients import distinct_names
from fedlit.data.federated import FederatedDataModule
from fedlit.data.records import SPLITS
from fedlit.sites.messages import Presence, Told

LARGE = 0.9
"""Share of all training images from which on a client is named."""


class Elsewhere(Dataset):
    """Examples that are at a site: their number is all that is known here.

    Args:
        client: Whose.
        size: How many.
        augmented: Whether they are augmented.
        sites: Organisation of each, [size]; () where the site does not tell.
    """

    def __init__(self, client: str, size: int, augmented: bool = False, sites: Sequence[str] = ()) -> None:
        self.client, self.size, self.sites = client, size, sites
        self.augment = True if augmented else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> None:
        raise ConfigError(f"the images of client {self.client!r} are at its site, and nobody else reads them")


class AtSites(FederatedDataModule):
    """Data that sites have: what they tell of their clients, and test sets that the server has itself.

    Clients come in the order of the sites: the first of each, then the second of each, and so on.

    Args:
        sites: What each site has told of itself, in the order of the sites.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of an evaluation.
        test_sets: Test sets of the server.
        arrays: Numbers of the organisations of each site's images, by site.

    Raises:
        ConfigError: Two sites have a client of one name.
    """

    def __init__(
        self,
        sites: Sequence[Presence],
        batch_size: int = 32,
        eval_batch_size: int = 128,
        test_sets: Mapping[str, Dataset] | None = None,
        arrays: Mapping[str, State] | None = None,
    ) -> None:
        super().__init__(None, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.classes = tuple(sites[0].classes)
        rows = zip_longest(*([(site.name, told) for told in site.clients] for site in sites))
        self.told: dict[str, Told] = {}
        self.site_of: dict[str, str] = {}
        for site, told in filter(None, chain.from_iterable(rows)):
            if told.name in self.site_of:
                raise ConfigError(
                    f"sites {self.site_of[told.name]!r} and {site!r} both have a client {told.name!r}; expected different names. With "
                    "ImageTable, clients have the names in the column that `site` gives: write the hospital's name into a column of "
                    "its table, and `site: COLUMN` into the data of its file"
                )
            self.told[told.name], self.site_of[told.name] = told, site
        distinct_names(self.told)
        self.clients = {
            name: _without_images(told, (arrays or {}).get(self.site_of[name], {})) for name, told in self.told.items()
        }
        self.schemes = {name: tuple(told.scheme) for name, told in self.told.items() if told.scheme is not None}
        self.test_sets = dict(test_sets or {})
        if silent := [site.name for site in sites if not site.scores]:
            self.notes.append(
                f"no scores of single images leave {', '.join(silent)}: AUROC over all clients is from histograms there, and the "
                "exact one is within auroc_within of it"
            )
        for site in sites:
            if not site.scores:
                self.notes += _untold(site)
        self.notes += [*self._large(), *self._unranked()]

    def prepare_data(self) -> None:
        """Do nothing: the sites have done it."""

    def setup(self, stage: str | None = None) -> None:
        """Do nothing: what is known is there."""

    def _large(self) -> Iterator[str]:
        """Say which client outweighs all others: a site may claim any number of images."""
        total = sum(told.train for told in self.told.values())
        for name, told in self.told.items():
            if len(self.told) > 1 and told.train > LARGE * total:
                yield (
                    f"client {name!r} of {self.site_of[name]} says that it has {told.train:,} of the {total:,} training images; with "
                    "federation.weights: uniform each client counts the same"
                )

    def _unranked(self) -> Iterator[str]:
        """Say that no class has an AUROC in validation, as each site hides its own: there is no sum that would hide the parts."""
        told = [counts for each in self.told.values() if (counts := each.counts.get("val"))]
        if told and all(
            None in pair for counts in told for pair in zip(*counts, strict=True) if any(n != 0 for n in pair)
        ):
            yield (
                "no site tells the AUROC of any class in validation, so that val/auroc_macro is NaN and the model of the last round counts "
                "as the best; federation.monitor: train/loss chooses by another metric"
            )

    def counts(self) -> pd.DataFrame:
        """Return what the sites have told, in the columns of any data; numbers that they do not tell are NaN."""
        rows = []
        for name, told in self.told.items():
            for split in SPLITS:
                size = getattr(told, split)
                if size is None:
                    continue
                counts = told.counts.get(split) or [[None] * len(self.classes)] * 2
                for label, *both in zip(self.classes, *counts, strict=True):
                    numbers = [np.nan if number is None else number for number in both]
                    rows.append((name, split, label, size, *numbers, label in told.classes))
        columns = ["client", "split", "class", "images", "positives", "negatives", "labelled"]
        return pd.DataFrame(rows, columns=columns)


def _without_images(told: Told, arrays: State) -> ClientData:
    parts = [
        None
        if size is None
        else Elsewhere(told.name, size, told.augmented and part == "train", _sites(told, part, arrays))
        for part, size in zip(SPLITS, (told.train, told.val, told.test), strict=True)
    ]
    return ClientData(told.name, tuple(told.classes), *parts)


def _sites(told: Told, part: str, arrays: State) -> Sequence[str]:
    """Organisation of each image of a part; () where they are not told, or do not fit."""
    numbers, names = arrays.get(f"organisation/{told.name}/{part}"), told.organisations.get(part, [])
    if numbers is None or len(numbers) != getattr(told, part) or not all(0 <= n < len(names) for n in numbers.unique()):
        return ()
    return np.asarray(names)[numbers.numpy()]


def _untold(site: Presence) -> Iterator[str]:
    """Say of which classes a site tells no AUROC, as so few images are positive or negative."""
    for split in ("val", "test"):
        few = {
            name
            for told in site.clients
            for name, *numbers in zip(site.classes, *told.counts.get(split, ((), ())), strict=False)
            if None in numbers and name in told.classes
        }
        if few:
            named = ", ".join(name for name in site.classes if name in few)
            yield (
                f"{site.name} tells no AUROC of {named} in {split}: fewer than {site.hides_below} images there are positive or negative, "
                "its counts_below; nor does it tell a loss of that part"
            )
