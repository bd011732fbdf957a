"""Messages between a server and its sites: a JSON header, and named arrays of numbers.

A message contains no code, and nothing is unpickled. Its bytes are ``FEDLIT``, the number of the protocol, the length
of the header, the header, and the arrays in turn, little-endian. The header carries the SHA-256 of the arrays' bytes.

PyTorch is imported only when tensors are requested, so a process that only forwards messages does not need it.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from fedlit.core.errors import FedlitError
from fedlit.core.system.documents import parse_json
from fedlit.core.system.typed import Mistyped, built, made
from fedlit.sites.messages import Head

if TYPE_CHECKING:
    from torch import Tensor

PROTOCOL = 6
"""Number of the protocol; a server and a site with different numbers refuse each other's messages."""

LARGEST_HEADER = 2**16
"""Largest number of bytes of a header."""

DEEPEST = 32
"""Greatest depth of nested maps and lists in a header."""

MAGIC = b"FEDLIT"
PREFIX = struct.Struct("<6sHI")

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of numbers that can be sent."""

Message = TypeVar("Message")


class InvalidMessageError(FedlitError, ValueError):
    """Error of a message that was changed on its way, or that is not a valid fedlit message."""


@dataclass(frozen=True)
class Header:
    """The header of a message."""

    verb: str  # What is asked, or `reply`, or `failed`.
    content: dict[str, Any]  # Fields of the message.
    listed: list[tuple[str, str, int]]  # Name, type and number of values of each array.
    shapes: dict[str, tuple[int, ...]]  # Shape of each array that is not one-dimensional.
    sha256: str  # SHA-256 of the bytes of the arrays.
    ledger: str = ""  # Head of the ledger of the site that has answered; "" in a server's message.

    @classmethod
    def read(cls, header: bytes) -> "Header":
        """Read a header from its bytes.

        Raises:
            InvalidMessageError: If it is not a valid header.
        """
        try:
            entries = parse_json(header)
            shapes = built(dict[str, tuple[int, ...]], entries["shapes"], "shapes")
            listed = built(list[tuple[str, Literal[DTYPES], int]], entries["vectors"], "vectors")
            content = _numbers(built(dict[str, Any], entries["content"], "content"))
            words = [built(kind, entries[key], key) for key, kind in (("verb", str), ("sha256", str), ("ledger", Head))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidMessageError(
                f"the header of a message cannot be read: {type(error).__name__} {error}"
            ) from error
        for name, dtype, size in listed:
            if size < 0 or (name in shapes and (min(shapes[name], default=0) < 0 or math.prod(shapes[name]) != size)):
                raise InvalidMessageError(
                    f"the array {name!r}: {size} values of {dtype} do not fit the shape {shapes.get(name)}"
                )
        if len({name for name, _, _ in listed}) < len(listed):
            raise InvalidMessageError("two arrays of a message have the same name")
        return cls(words[0], content, listed, shapes, words[1], words[2])

    def cut(self, arrays: memoryview) -> dict[str, np.ndarray]:
        """Return the arrays as views of the bytes that follow the header.

        Raises:
            InvalidMessageError: If the number of bytes does not fit the header.
        """
        views, offset = {}, 0
        for name, dtype, size in self.listed:
            kind = np.dtype(dtype).newbyteorder("<")
            end = offset + size * kind.itemsize
            if end > len(arrays):
                raise InvalidMessageError(
                    f"the array {name!r} is incomplete: expected {end:,} bytes, found {len(arrays):,}"
                )
            views[name] = np.frombuffer(arrays[offset:end], kind)
            offset = end
        if offset != len(arrays):
            raise InvalidMessageError(f"{len(arrays) - offset:,} bytes follow the last array")
        return views


@dataclass(frozen=True)
class Envelope:
    """A message."""

    verb: str  # What is asked, or `reply`, or `failed`.
    content: dict[str, Any] = field(default_factory=dict)  # Fields of the message, as JSON holds them.
    vectors: dict[str, np.ndarray] = field(default_factory=dict)  # Named arrays, each 1-D and contiguous.
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # Original shape of each array that was not 1-D.
    sha256: str = ""  # SHA-256 of the bytes of the arrays; "" if it is not known yet.
    ledger: str = ""  # Head of the ledger of the site that has answered.
    filtered: str = ""  # What the site's own privacy filters have done to it, readable; "" for nothing.

    @classmethod
    def of(cls, verb: str, message: Any, tensors: "Mapping[str, Tensor] | None" = None) -> "Envelope":
        """Put a dataclass and named tensors into an envelope.

        Raises:
            TypeError: If a tensor's type cannot be sent, such as bfloat16.
        """
        vectors, shapes = {}, {}
        for name, tensor in (tensors or {}).items():
            if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
                raise TypeError(f"{name!r}: expected one of {', '.join(DTYPES)}, found {tensor.dtype}")
            vectors[name] = np.ascontiguousarray(tensor.detach().cpu().reshape(-1).numpy())
            if tensor.ndim != 1:
                shapes[name] = tuple(tensor.shape)
        return cls(verb, asdict(message), vectors, shapes, _hash(vectors))

    def saying(self, verb: str, message: Any) -> "Envelope":
        """Return the same arrays with another message, without hashing them again."""
        return replace(self, verb=verb, content=asdict(message))

    def message(self, kind: type[Message]) -> Message:
        """Read the fields as a dataclass, and check each value against its range.

        Raises:
            InvalidMessageError: If the fields are those of another message, or a value has another type or is out of
                range.
        """
        wanted = {each.name for each in fields(kind)}
        if wanted != self.content.keys():
            odd = sorted(wanted ^ self.content.keys())
            raise InvalidMessageError(f"a message {self.verb!r}: missing or unknown fields: {', '.join(odd)}")
        try:
            return made(kind, self.content, self.verb)
        except Mistyped as error:
            raise InvalidMessageError(f"a message {self.verb!r} has a value that does not fit: {error}") from error

    def tensors(self) -> "dict[str, Tensor]":
        """Return the arrays as tensors, in their original shapes."""
        import torch

        return {n: torch.from_numpy(v).reshape(self.shapes.get(n, (-1,))) for n, v in self.vectors.items()}

    @property
    def nbytes(self) -> int:
        """The number of bytes of the arrays."""
        return sum(vector.nbytes for vector in self.vectors.values())

    @property
    def digest(self) -> str:
        """SHA-256 of the arrays with their names, in hexadecimal."""
        return self.sha256 or _hash(self.vectors)

    def header(self) -> bytes:
        """Return the header, with the hash of the arrays.

        Raises:
            ValueError: If it is larger than 64 kB.
        """
        entries = {
            "verb": self.verb,
            "content": _plain(self.content),
            "vectors": [[name, vector.dtype.name, vector.size] for name, vector in self.vectors.items()],
            "shapes": self.shapes,
            "sha256": self.digest,
            "ledger": self.ledger,
        }
        text = json.dumps(entries, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > LARGEST_HEADER:
            raise ValueError(
                f"the header of a message {self.verb!r} has {len(text):,} bytes, more than {LARGEST_HEADER:,}: use "
                "fewer names (of clients, of what a module logs), or a shorter configuration"
            )
        return text

    def to_bytes(self) -> bytes:
        """Return the whole message as bytes."""
        return joined(self.header(), self.vectors.values())

    @classmethod
    def from_bytes(cls, content: bytes) -> "Envelope":
        """Read a message, and check its hash.

        Raises:
            InvalidMessageError: If it is not a valid, complete message of this protocol, or its hash does not match.
        """
        header, arrays = split(content)
        head = Header.read(header)
        views = head.cut(arrays).items()  # copied in the byte order of this machine
        return cls.of_arrays(head, {name: view.astype(view.dtype.newbyteorder("=")) for name, view in views})

    @classmethod
    def of_arrays(cls, head: Header, arrays: Mapping[str, np.ndarray], filters: Sequence[str] = ()) -> "Envelope":
        """Make an envelope of a header and its arrays, and check their hash; the arrays are not copied.

        Args:
            head: The header.
            arrays: The arrays.
            filters: Names of the site's own filters that have acted on it. Then arrays may be missing and have other
                values, and the hash is not checked.

        Raises:
            InvalidMessageError: If they do not belong together.
        """
        form = [(name, array.dtype.name, array.size) for name, array in arrays.items()]
        if filters and set(form) <= set(head.listed):
            removed = [repr(name) for name, _, _ in head.listed if name not in arrays]
            did = f"has removed {', '.join(removed)}" if removed else "may have changed it"
            vectors = {name: array.reshape(-1) for name, array in arrays.items()}
            shapes = {name: shape for name, shape in head.shapes.items() if name in arrays}
            said = f"the site's own privacy filter {', '.join(filters)} {did}"
            return cls(head.verb, head.content, vectors, shapes, _hash(vectors), head.ledger, filtered=said)
        if form != head.listed:
            raise InvalidMessageError("the arrays of a message are not those that its header names")
        if head.sha256 != _hash(arrays):
            raise InvalidMessageError("the arrays of a message were changed on their way: their SHA-256 does not match")
        return cls(head.verb, head.content, dict(arrays), head.shapes, head.sha256, head.ledger)


def joined(header: bytes, arrays: Iterable[np.ndarray]) -> bytes:
    """Join the header of a message and its arrays."""
    little = (np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in arrays)
    return b"".join([PREFIX.pack(MAGIC, PROTOCOL, len(header)), header, *(array.data for array in little)])


def split(content: bytes) -> tuple[bytes, memoryview]:
    """Split a message into its header and the bytes of its arrays.

    Raises:
        InvalidMessageError: If it is not a message of this protocol, or is incomplete.
    """
    if len(content) < PREFIX.size:
        raise InvalidMessageError(f"a message of {len(content)} bytes is incomplete")
    magic, protocol, length = PREFIX.unpack_from(content)
    if magic != MAGIC:
        raise InvalidMessageError("expected a fedlit message, found other data")
    if protocol != PROTOCOL:
        raise InvalidMessageError(
            f"expected a message of protocol {PROTOCOL}, found protocol {protocol}: install the same fedlit on both "
            f"sides"
        )
    start = PREFIX.size + length
    if length > LARGEST_HEADER or start > len(content):
        raise InvalidMessageError(
            f"expected a header of at most {min(LARGEST_HEADER, len(content)):,} bytes, found {length:,}"
        )
    return content[PREFIX.size : start], memoryview(content)[start:]


def _hash(vectors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, vector in vectors.items():  # named, so that no two arrays of an approved plan can be exchanged
        digest.update(f"{name}\0{vector.dtype.name}\0{vector.size}\0".encode())
        digest.update(np.ascontiguousarray(vector, vector.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by an object with one key."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"": next(name for name, other in NOT_FINITE.items() if repr(other) == repr(value))}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _numbers(value: Any, depth: int = 0) -> Any:
    """Invert :func:`_plain`."""
    if depth > DEEPEST:
        raise ValueError(f"maps and lists are nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        if value.keys() == {""}:
            return NOT_FINITE[value[""]]
        return {key: _numbers(each, depth + 1) for key, each in value.items()}
    return [_numbers(each, depth + 1) for each in value] if isinstance(value, list) else value
