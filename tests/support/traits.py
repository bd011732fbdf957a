"""The traits of configurations, plans and their cases, and a few of them that have every trait of all."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def traits(value: object, key: str = "") -> Iterator[str]:
    """Yield the keys of a configuration with their classes and words, and its lists of aggregators."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name not in ("experiment", "name", "backbone", "marker"):
                yield from traits(each, key if name in ("class_path", "init_args") else f"{key}.{name}")
    elif isinstance(value, list):
        yield key
        if key.endswith(".aggregators"):
            yield f"{key}={[each if isinstance(each, str) else each['class_path'] for each in value]}"
        for each in value:
            yield from traits(each, key) if isinstance(each, dict) else ()
    else:
        yield f"{key}={value}" if isinstance(value, str) else key


def representatives(of_each: Mapping[T, set[str]], seen: Iterable[str] = ()) -> list[T]:
    """Return a few that have every trait of the others among them, but for the traits that were seen."""
    seen, found = {*seen}, []
    while of_each and of_each[most := max(of_each, key=lambda each: len(of_each[each] - seen))] - seen:
        found.append(most)
        seen |= of_each[most]
    return found
