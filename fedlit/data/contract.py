"""Contract of data modules: properties that a federation relies on, checked with a small data set."""

import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import ArgumentParser, Namespace

from fedlit.core.examples import IMAGE, LABEL, MapDataset, described, fetch, fetched, part_of
from fedlit.data.clients import parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.records import Records
from fedlit.data.xrays.base import ChestXrays


def check_data_module(kind: type[FederatedDataModule], **arguments: Any) -> None:
    """Check that a data module does what a federation relies on.

    The module is built twice from its arguments as YAML. Both copies are read and set up. The function checks that

    * the arguments survive a round trip through YAML;
    * the classes are known before ``setup()`` and stay the same;
    * the records are consistent, and reading them twice gives the same records and images;
    * no patient is in two splits, both copies have the same partition, and a second ``setup()`` changes nothing;
    * batches are finite and have labels 0, 1 or NaN, one column per class;
    * the data sets can be sent to other processes, and an example is the same each time it is read.

    For a reader of X-rays (``ChestXrays``) it also checks, on a copy of the folder, that

    * a folder that is missing or empty, and an unknown class, are errors that name the folder or the class;
    * a missing or truncated image is an error that names the file, and is left out with ``missing`` or ``damaged``
    ``drop``.

    Args:
        kind: The class of the data module. It must be importable.
        **arguments: Arguments of its constructor as in YAML. Choose a small data set of some dozens of images.

    Raises:
        AssertionError: The message lists every problem.
    """
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    problems: list[str] = []
    cause: Exception | None = None
    made = cache(lambda: _Maker(kind, arguments))  # within the checks, which report its errors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a small data set lacks classes
        for check in (_check_clients, _check_reader) if issubclass(kind, ChestXrays) else (_check_clients,):
            try:
                for problem in check(made()):
                    problems.append(problem)
            except Exception as error:
                cause = error
                problems.append(f"{type(error).__name__}: {error}")
    if problems:
        lines = "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        raise AssertionError(f"{kind.__name__}:\n{lines}") from cause


class _Maker:
    """Modules of a class, made from arguments that were written as YAML and parsed again."""

    def __init__(self, kind: type[FederatedDataModule], arguments: dict[str, Any]) -> None:
        self.kind, self._parser = kind, ArgumentParser(exit_on_error=False)
        self._parser.add_subclass_arguments(FederatedDataModule, "data")
        path = f"{kind.__module__}.{kind.__qualname__}"
        config = self._parser.parse_object({"data": {"class_path": path, "init_args": arguments}})
        self._config = self._parser.parse_string(self._parser.dump(config))

    def __call__(self, **changes: Any) -> Any:
        """Return a new module, with some of its arguments changed."""
        config = self._config.clone()
        config.data.init_args.update(Namespace(changes))
        return self._parser.instantiate(config).data


def _check_clients(make: _Maker) -> Iterator[str]:
    one, other = make(), make()
    classes = tuple(one.classes)
    if one._has_records():
        yield from _check_records(one._read(), other._read(), classes)
    for data in (one, other):
        data.prepare_data()
        data.setup()
    if tuple(one.classes) != classes:
        yield f"classes: {classes} before setup(), {tuple(one.classes)} after it; set self.classes in __init__"
    if not one.clients:
        yield "setup(): expected clients, found none"
    if one.partition_hash != other.partition_hash:
        yield "setup(): a second copy has other clients or splits; draw from a generator of self.seed only"
    before = one.partition_hash, dict(one.clients)
    one.setup()
    if (one.partition_hash, one.clients) != before:
        yield "setup(): a second call changed the clients; return if they exist already"
    for (name, part), (_, again) in zip(_data_sets(one), _data_sets(other), strict=True):
        yield from (f"{name}: {problem}" for problem in _check_data_set(part, again, len(classes)))


def _data_sets(data: FederatedDataModule) -> Iterator[tuple[str, MapDataset]]:
    for client in data.clients.values():
        yield from ((f"client {client.name!r}, {split}", part) for split, part in parts_of(client))
    yield from ((f"test set {name!r}", part) for name, part in data.test_sets.items())


def _check_records(one: Records, other: Records, classes: tuple[str, ...]) -> Iterator[str]:
    if tuple(one.classes) != classes:
        yield f"records(): has the classes {one.classes}, the module has {classes}"
    if np.asarray(one.labels).dtype != np.float32:
        yield f"records(): expected labels of float32, found {np.asarray(one.labels).dtype}"
    for field in ("names", "labels", "patients", "sites", "splits"):
        values = [getattr(records, field) for records in (one, other)]
        equal_nan = {"equal_nan": True} if field == "labels" else {}
        if not np.array_equal(*values, **equal_nan):
            yield f"records(): {field} differ when the data are read again"
    if one.groups.keys() != other.groups.keys() or any((one.groups[k] != other.groups[k]).any() for k in one.groups):
        yield "records(): groups differ when the data are read again"
    if not one.table.equals(other.table):
        yield "records(): table differs when the data are read again"
    rows = np.unique(np.linspace(0, len(one.names) - 1, min(len(one.names), 16)).astype(int))
    if len(one.store) == len(other.store) and not torch.equal(one.store[rows], other.store[rows]):
        yield "records(): the images differ when the data are read again"


def _check_data_set(data: MapDataset, again: MapDataset, classes: int) -> Iterator[str]:
    if len(data) != len(again):
        yield f"has {len(data)} examples, and {len(again)} in a second copy"
        return
    batch = fetch(data, torch.arange(min(len(data), 4)))
    images, labels = part_of(batch, 0, IMAGE), part_of(batch, 1, LABEL)
    if not torch.is_tensor(images) or not torch.is_tensor(labels):
        yield f"expected batches of images and labels, found {described(batch)}"
        return
    if not torch.isfinite(images).all():
        yield "a batch has values that are not finite"
    if labels.ndim == 2:
        if not (torch.isnan(labels) | (labels == 0) | (labels == 1)).all():
            yield "expected labels 0, 1 or NaN, found others"
        if classes and labels.shape[1] != classes:
            yield f"expected labels [B, {classes}], found {list(labels.shape)}"
    for number in {0, len(data) - 1}:
        example = fetched(data, number)
        if fetched(data, number) != example:
            yield f"example {number} differs when it is read again; do not keep state between reads"
        elif fetched(again, number) != example:
            yield f"example {number} differs in a second copy"
        elif fetched(pickle.loads(pickle.dumps(data)), number) != example:
            yield f"example {number} differs in a pickled copy, as another process would have"


def _check_reader(make: _Maker) -> Iterator[str]:
    kind: Any = make.kind
    with tempfile.TemporaryDirectory() as folder:
        nowhere, empty, copy = (Path(folder, name) for name in ("nowhere", "empty", "copy"))
        empty.mkdir()
        shutil.copytree(make().given_root, copy)
        for place in (nowhere, empty):
            text = _error(lambda: make(root=str(place)).records())  # noqa: B023
            if str(place) not in text:
                yield f"the {place.name} folder: expected an error that names it, found {text or 'no error'}"
        if kind.needs and (kind.recognises(empty) or not kind.recognises(make(root=str(copy)).root)):
            yield f"recognises(): expected True for the data set, False for an empty folder; check needs {kind.needs}"
        text = _error(lambda: make(root=str(copy), classes=["Not a class"]))
        if "'Not a class'" not in text:
            yield f"an unknown class: expected an error that names it, found {text or 'no error'}"
        yield from _check_damage(make, str(copy))


def _check_damage(make: _Maker, root: str) -> Iterator[str]:
    def reader(**changes: str) -> ChestXrays:
        data = make(root=root, **changes)
        data.cache_dir = f"{root}-cache"  # the user's cache would keep the images of the copy
        return data

    file = Path(reader().read_within().files[0])
    content = file.read_bytes()
    for option, what in (("damaged", "truncated"), ("missing", "missing")):
        if option == "damaged":
            file.write_bytes(content[: len(content) // 2])
        else:
            file.unlink()
        data = reader(**{option: "drop"})
        files = list(map(str, data.read_within().files))
        if str(file) not in files:
            return  # a reader that lists the folder knows nothing of an image that is not there
        text = _error(lambda: reader().records())
        if file.stem not in text:
            yield f"a {what} image: expected an error that names {file.name}, found {text or 'no error'}"
        if len(data.records().names) != len(files) - 1 or [left.file for left in data.left_out] != [str(file)]:
            yield f"a {what} image with {option}: drop: expected it in left_out and not in the records"


def _error(call: Callable[[], object]) -> str:
    """Return the message of the error that a call raises, or an empty text if it raises none."""
    try:
        call()
    except (ValueError, OSError) as error:
        return str(error)
    return ""
