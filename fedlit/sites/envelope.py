"""The only thing that travels between a server and its sites: a header of JSON, and named arrays of numbers.

Nothing in it is code, and nothing is unpickled. As bytes it is ``FEDLIT``, the protocol's number, the length of the header,
the header, and the arrays one after the other, little-endian. The header carries the SHA-256 of the arrays' bytes.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

PROTOCOL = 1
"""Number of what is said here; sites and server that speak different ones do not talk to each other."""

LARGEST_HEADER = 2**16
"""Bytes of a header at most."""

MAGIC = b"FEDLIT"
PREFIX = struct.Struct("<6sHI")

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""Types of numbers that travel."""

Message = TypeVar("Message")


class Damaged(ValueError):
    """What has arrived is not what was sent, or is no message of fedlit."""


@dataclass(frozen=True)
class Envelope:
    """A message.

    Attributes:
        verb: What is asked, or ``reply``, or ``failed``.
        content: Fields of the message, as JSON holds them.
        vectors: Named arrays, each 1-D and contiguous.
        shapes: Shape of each array where it was another one.
    """

    verb: str
    content: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, verb: str, message: Any, tensors: Mapping[str, Tensor] | None = None) -> "Envelope":
        """Put a dataclass and named tensors into an envelope.

        Raises:
            TypeError: A tensor is of a type that does not travel, such as bfloat16.
        """
        vectors, shapes = {}, {}
        for name, tensor in (tensors or {}).items():
            if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
                raise TypeError(f"{name!r}: numbers of the type {tensor.dtype} do not travel between sites")
            vectors[name] = np.ascontiguousarray(tensor.detach().cpu().reshape(-1).numpy())
            if tensor.ndim != 1:
                shapes[name] = tuple(tensor.shape)
        return cls(verb, asdict(message), vectors, shapes)

    def message(self, kind: type[Message]) -> Message:
        """Read the fields as a dataclass.

        Raises:
            Damaged: They are those of another one.
        """
        wanted = {each.name for each in fields(kind)}
        if wanted != self.content.keys():
            odd = sorted(wanted ^ self.content.keys())
            raise Damaged(f"a message {self.verb!r} with other fields than fedlit's own: {', '.join(odd)}")
        return kind(**self.content)

    def tensors(self) -> dict[str, Tensor]:
        """Give the arrays as tensors, in the shapes that they had."""
        return {
            name: torch.from_numpy(vector).reshape(self.shapes.get(name, (-1,)))
            for name, vector in self.vectors.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(vector.nbytes for vector in self.vectors.values())

    def header(self) -> bytes:
        """Give the header, with the hash of the arrays.

        Raises:
            ValueError: It is larger than 64 kB.
        """
        told = {
            "verb": self.verb,
            "content": _plain(self.content),
            "vectors": [[name, vector.dtype.name, vector.size] for name, vector in self.vectors.items()],
            "shapes": self.shapes,
            "sha256": _hash(self.vectors),
        }
        text = json.dumps(told, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > LARGEST_HEADER:
            raise ValueError(
                f"the header of a message {self.verb!r} has {len(text):,} bytes, more than {LARGEST_HEADER:,}: fewer names "
                "(of clients, of what a module logs), or a shorter configuration"
            )
        return text

    def to_bytes(self) -> bytes:
        """Give the whole message as bytes."""
        return joined(self.header(), self.vectors.values())

    @classmethod
    def from_bytes(cls, content: bytes) -> "Envelope":
        """Read a message, and check its hash.

        Raises:
            Damaged: It is none, of another protocol, cut off, or its hash does not fit.
        """
        return cls.of_parts(*split(content))

    @classmethod
    def of_parts(cls, header: bytes, arrays: memoryview, checked: bool = True) -> "Envelope":
        """Read a header, and the arrays that follow it.

        Args:
            header: The header.
            arrays: The bytes of the arrays.
            checked: Whether the hash has to fit; whoever hands a message on leaves that to the one who reads it.

        Raises:
            Damaged: They do not fit together.
        """
        try:
            told = json.loads(header)
            verb, content, listed = told["verb"], _numbers(told["content"]), told["vectors"]
            shapes = {name: tuple(map(int, shape)) for name, shape in told["shapes"].items()}
            types = [(str(name), str(dtype), int(size)) for name, dtype, size in listed]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"the header of a message cannot be read: {type(error).__name__} {error}") from error
        vectors, offset = {}, 0
        for name, dtype, size in types:
            if dtype not in DTYPES or size < 0 or name in vectors:
                raise Damaged(f"the array {name!r} of {size} numbers of the type {dtype} is none that travels")
            kind = np.dtype(dtype).newbyteorder("<")
            end = offset + size * kind.itemsize
            if end > len(arrays):
                raise Damaged(f"the array {name!r} is cut off: expected {end:,} bytes, found {len(arrays):,}")
            vectors[name] = np.frombuffer(arrays[offset:end], kind).astype(np.dtype(dtype))  # memory of its own
            if name in shapes and math.prod(shapes[name]) != size:
                raise Damaged(f"the array {name!r} has {size} numbers, which are none of the shape {shapes[name]}")
            offset = end
        if offset != len(arrays):
            raise Damaged(f"{len(arrays) - offset:,} bytes follow the last array")
        if checked and told.get("sha256") != _hash(vectors):
            raise Damaged("the arrays of a message are not those that were sent: their SHA-256 is another one")
        return cls(str(verb), content, vectors, shapes)


def joined(header: bytes, arrays: Iterable[np.ndarray]) -> bytes:
    """Put the header of a message and its arrays together."""
    little = (np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in arrays)
    return b"".join([PREFIX.pack(MAGIC, PROTOCOL, len(header)), header, *(array.data for array in little)])


def split(content: bytes) -> tuple[bytes, memoryview]:
    """Take a message apart: its header, and the bytes of its arrays.

    Raises:
        Damaged: It is none, of another protocol, or cut off.
    """
    if len(content) < PREFIX.size:
        raise Damaged(f"a message of {len(content)} bytes is cut off")
    magic, protocol, length = PREFIX.unpack_from(content)
    if magic != MAGIC:
        raise Damaged("these bytes are no message of fedlit")
    if protocol != PROTOCOL:
        raise Damaged(f"a message of protocol {protocol}, expected {PROTOCOL}: install the same fedlit on both sides")
    start = PREFIX.size + length
    if length > LARGEST_HEADER or start > len(content):
        raise Damaged(f"a header of {length:,} bytes, of at most {min(LARGEST_HEADER, len(content)):,}")
    return content[PREFIX.size : start], memoryview(content)[start:]


def _hash(vectors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for vector in vectors.values():
        digest.update(np.ascontiguousarray(vector, vector.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: an object with one key stands for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"": next(name for name, other in NOT_FINITE.items() if repr(other) == repr(value))}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _numbers(value: Any) -> Any:
    """The inverse of :func:`_plain`."""
    if isinstance(value, dict):
        if value.keys() == {""}:
            return NOT_FINITE[value[""]]
        return {key: _numbers(each) for key, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else value
