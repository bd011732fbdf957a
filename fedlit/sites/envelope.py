"""The only thing that travels between a server and its sites: a header of JSON, and named arrays of numbers.

Nothing in it is code, and nothing is unpickled. As bytes it is ``FEDLIT``, the protocol's number, the length of the header,
the header, and the arrays one after the other, little-endian. The header carries the SHA-256 of the arrays' bytes.

Whoever hands messages on needs no PyTorch: it is imported where tensors are asked for.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from fedlit.core.system.typed import Mistyped, built, made

if TYPE_CHECKING:
    from torch import Tensor

PROTOCOL = 4
"""Number of what is said here; sites and server that speak different ones do not talk to each other."""

LARGEST_HEADER = 2**16
"""Bytes of a header at most."""

DEEPEST = 32
"""Maps and lists within each other in a header, at most."""

MAGIC = b"FEDLIT"
PREFIX = struct.Struct("<6sHI")

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of numbers that travel."""

Message = TypeVar("Message")


class Damaged(ValueError):
    """What has arrived is not what was sent, or is no message of fedlit."""


@dataclass(frozen=True)
class Header:
    """What the header of a message tells.

    Attributes:
        verb: What is asked, or ``reply``, or ``failed``.
        content: Fields of the message.
        listed: Name, type and number of values of each array.
        shapes: Shape of each array that has more than one dimension.
        sha256: Of the bytes of the arrays.
        ledger: Head of the ledger of the site that has answered; "" of what a server asks.
    """

    verb: str
    content: dict[str, Any]
    listed: list[tuple[str, str, int]]
    shapes: dict[str, tuple[int, ...]]
    sha256: str
    ledger: str = ""

    @classmethod
    def read(cls, header: bytes) -> "Header":
        """Read it.

        Raises:
            Damaged: It is none.
        """
        try:
            told = strict_json(header)
            shapes = built(dict[str, tuple[int, ...]], told["shapes"], "shapes")
            listed = built(list[tuple[str, Literal[DTYPES], int]], told["vectors"], "vectors")
            content = _numbers(built(dict[str, Any], told["content"], "content"))
            words = [built(str, told[key], key) for key in ("verb", "sha256", "ledger")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"the header of a message cannot be read: {type(error).__name__} {error}") from error
        for name, dtype, size in listed:
            if size < 0 or (name in shapes and (min(shapes[name], default=0) < 0 or math.prod(shapes[name]) != size)):
                raise Damaged(
                    f"the array {name!r} of {size} {dtype} and the shape {shapes.get(name)} is none that travels"
                )
        if len({name for name, _, _ in listed}) < len(listed):
            raise Damaged("two arrays of a message have one name")
        return cls(words[0], content, listed, shapes, words[1], words[2])

    def cut(self, arrays: memoryview) -> dict[str, np.ndarray]:
        """Give the arrays as views of the bytes that follow the header.

        Raises:
            Damaged: They do not fit.
        """
        views, offset = {}, 0
        for name, dtype, size in self.listed:
            kind = np.dtype(dtype).newbyteorder("<")
            end = offset + size * kind.itemsize
            if end > len(arrays):
                raise Damaged(f"the array {name!r} is cut off: expected {end:,} bytes, found {len(arrays):,}")
            views[name] = np.frombuffer(arrays[offset:end], kind)
            offset = end
        if offset != len(arrays):
            raise Damaged(f"{len(arrays) - offset:,} bytes follow the last array")
        return views


@dataclass(frozen=True)
class Envelope:
    """A message.

    Attributes:
        verb: What is asked, or ``reply``, or ``failed``.
        content: Fields of the message, as JSON holds them.
        vectors: Named arrays, each 1-D and contiguous.
        shapes: Shape of each array where it was another one.
        sha256: Of the bytes of the arrays; "" where it is not known yet.
        ledger: Head of the ledger of the site that has answered.
    """

    verb: str
    content: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sha256: str = ""
    ledger: str = ""

    @classmethod
    def of(cls, verb: str, message: Any, tensors: "Mapping[str, Tensor] | None" = None) -> "Envelope":
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
        return cls(verb, asdict(message), vectors, shapes, _hash(vectors))

    def saying(self, verb: str, message: Any) -> "Envelope":
        """Give the same arrays with another message, and do not hash them again."""
        return replace(self, verb=verb, content=asdict(message))

    def message(self, kind: type[Message]) -> Message:
        """Read the fields as a dataclass.

        Raises:
            Damaged: They are those of another one, or a value is of another type.
        """
        wanted = {each.name for each in fields(kind)}
        if wanted != self.content.keys():
            odd = sorted(wanted ^ self.content.keys())
            raise Damaged(f"a message {self.verb!r} with other fields than fedlit's own: {', '.join(odd)}")
        try:
            return made(kind, self.content, self.verb)
        except Mistyped as error:
            raise Damaged(f"a message {self.verb!r} with a value that is not fedlit's: {error}") from error

    def tensors(self) -> "dict[str, Tensor]":
        """Give the arrays as tensors, in the shapes that they had."""
        import torch

        return {
            name: torch.from_numpy(vector).reshape(self.shapes.get(name, (-1,)))
            for name, vector in self.vectors.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(vector.nbytes for vector in self.vectors.values())

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes of the arrays, in hexadecimal."""
        return self.sha256 or _hash(self.vectors)

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
            "sha256": self.digest,
            "ledger": self.ledger,
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
        header, arrays = split(content)
        head = Header.read(header)
        return cls.of_arrays(head, {name: _own(view) for name, view in head.cut(arrays).items()})

    @classmethod
    def of_arrays(cls, head: Header, arrays: Mapping[str, np.ndarray]) -> "Envelope":
        """Take a header and its arrays, and check their hash; the arrays become the envelope's own.

        Raises:
            Damaged: They do not fit together.
        """
        found = [(name, array.dtype.name, array.size) for name, array in arrays.items()]
        if found != head.listed:
            raise Damaged("the arrays of a message are none of those that its header names")
        if head.sha256 != _hash(arrays):
            raise Damaged("the arrays of a message are not those that were sent: their SHA-256 is another one")
        return cls(head.verb, head.content, dict(arrays), head.shapes, head.sha256, head.ledger)


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


def _own(view: np.ndarray) -> np.ndarray:
    """A copy in the byte order of this machine."""
    return view.astype(view.dtype.newbyteorder("="))


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


def _numbers(value: Any, depth: int = 0) -> Any:
    """The inverse of :func:`_plain`.

    Raises:
        ValueError: It is too deep.
    """
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} maps and lists within each other")
    if isinstance(value, dict):
        if value.keys() == {""}:
            return NOT_FINITE[value[""]]
        return {key: _numbers(each, depth + 1) for key, each in value.items()}
    return [_numbers(each, depth + 1) for each in value] if isinstance(value, list) else value


def strict_json(text: bytes) -> Any:
    """Read JSON whose maps have each key once, and whose numbers are finite.

    Raises:
        ValueError: It is something else.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            raise ValueError("a key is there twice")
        return read

    return json.loads(text, object_pairs_hook=once, parse_constant=_no_number, parse_float=_finite)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)
