"""Read and check the header of a GGUF file in pure Python, before any native code sees the file.

A native reader that meets a damaged file may abort the process, which nothing can catch. So every
length, count, offset and type is checked here against the size of the file. Layout (little endian,
versions 2 and 3): magic, version u32, tensor count u64, key count u64, the keys, the tensor entries,
then the tensors' bytes from the next multiple of ``general.alignment``.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pie_mlx.errors import ModelCorrupt, UnsupportedModel

MAGIC = b"GGUF"
_SUPPORTED_VERSIONS = (2, 3)
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32

Scalar: TypeAlias = "int | float | bool | str"
Value: TypeAlias = "Scalar | list[Scalar]"

_STRING, _ARRAY = 8, 9
_SCALAR_FORMATS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""Value type to its ``struct`` format (8 is a string, 9 an array)."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """How a tensor type is stored: ``block_bytes`` bytes for every ``block_size`` values."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_KINDS: Mapping[int, TensorKind] = {
    0: TensorKind("F32", 1, 4),
    1: TensorKind("F16", 1, 2),
    2: TensorKind("Q4_0", 32, 18),
    3: TensorKind("Q4_1", 32, 20),
    8: TensorKind("Q8_0", 32, 34),
}
"""The types that are read without loss; their numbers are the format's own."""

_OTHER_KINDS: Mapping[int, str] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""Types the format knows and we do not read, for the error's sentence."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file; ``shape`` as the format has it, fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: TensorKind
    offset: int
    """Bytes from the start of the tensor area."""

    @property
    def num_bytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) // self.kind.block_size * self.kind.block_bytes


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything a GGUF file says before its weights."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorEntry]
    data_start: int
    """Where the tensor area begins, in bytes from the start of the file."""


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header of the GGUF file at ``path``.

    Raises:
        ModelCorrupt: the file is not GGUF, is cut short, or contradicts itself.
        UnsupportedModel: its version or a tensor's type is not one that is read here.
    """
    size = path.stat().st_size
    if size < 24:
        raise ModelCorrupt(str(path), f"the file has {size} bytes, too few for a GGUF header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return _HeaderReader(path, view).read()


class _HeaderReader:
    """A cursor over the header that refuses to read past the end of the file."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self._path = path
        self._view = view
        self._size = len(view)
        self._at = 0

    def read(self) -> GGUFHeader:
        if self._take(4) != MAGIC:
            raise ModelCorrupt(str(self._path), "the file does not begin with the GGUF magic")
        version = self._number("<I")
        if version not in _SUPPORTED_VERSIONS:
            raise UnsupportedModel(str(self._path), f"GGUF version {version} is not read (2 and 3 are)")
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        self._check_count(num_tensors, 24, "tensors")
        self._check_count(num_keys, 13, "keys")
        metadata = self._metadata(num_keys)
        tensors = self._tensors(num_tensors)
        start = self._data_start(metadata)
        self._check_extent(start, tensors)
        return GGUFHeader(self._path, metadata, tensors, start)

    def _corrupt(self, reason: str) -> ModelCorrupt:
        return ModelCorrupt(str(self._path), reason, "fetch the file again")

    def _check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count whose items could not fit into the rest of the file."""
        if count * least_bytes > self._size - self._at:
            raise self._corrupt(f"the header promises {count} {what}, more than {self._size} bytes can hold")

    def _take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > self._size:
            raise self._corrupt(f"the file ends at byte {self._size}, inside its header")
        piece = self._view[self._at : end]
        self._at = end
        return piece

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _string(self) -> str:
        length = self._number("<Q")
        self._check_count(length, 1, "characters")
        start = self._at
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt(f"the text at byte {start} is not UTF-8") from error

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise self._corrupt(f"the key {key!r} appears twice")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        kind = self._number("<I")
        return self._array(key) if kind == _ARRAY else self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Scalar:
        if kind == _STRING:
            return self._string()
        form = _SCALAR_FORMATS.get(kind)
        if form is None:
            raise self._corrupt(f"the key {key!r} has the unknown value type {kind}")
        value: Scalar = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _array(self, key: str) -> list[Scalar]:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            self._check_count(count, 8, f"texts in {key!r}")
            return [self._string() for _ in range(count)]
        form = _SCALAR_FORMATS.get(kind)
        if form is None:
            raise self._corrupt(f"the list {key!r} has the unknown value type {kind}")
        width = struct.calcsize(form)
        self._check_count(count, width, f"values in {key!r}")
        return [item for (item,) in struct.iter_unpack(form, self._take(count * width))]

    def _tensors(self, count: int) -> dict[str, TensorEntry]:
        tensors: dict[str, TensorEntry] = {}
        for _ in range(count):
            entry = self._tensor()
            if entry.name in tensors:
                raise self._corrupt(f"the tensor {entry.name!r} appears twice")
            tensors[entry.name] = entry
        return tensors

    def _tensor(self) -> TensorEntry:
        name, num_dims = self._string(), self._number("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._corrupt(f"the tensor {name!r} has {num_dims} dimensions")
        shape = tuple(self._number("<Q") for _ in range(num_dims))
        kind_number, offset = self._number("<I"), self._number("<Q")
        kind = self._tensor_kind(name, kind_number)
        if 0 in shape or shape[0] % kind.block_size:
            raise self._corrupt(f"the tensor {name!r} of shape {shape} cannot be stored as {kind.name}")
        return TensorEntry(name, shape, kind, offset)

    def _tensor_kind(self, name: str, number: int) -> TensorKind:
        kind = TENSOR_KINDS.get(number)
        if kind is not None:
            return kind
        other = _OTHER_KINDS.get(number)
        if other is None:
            raise self._corrupt(f"the tensor {name!r} has the unknown type {number}")
        known = ", ".join(item.name for item in TENSOR_KINDS.values())
        raise UnsupportedModel(
            str(self._path),
            f"the tensor {name!r} is stored as {other}; {known} are read",
            "choose a file in one of these, or an MLX model (pie-mlx models)",
        )

    def _data_start(self, metadata: Mapping[str, Value]) -> int:
        """Return where the tensor area begins: at the next multiple of the alignment."""
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self._corrupt(f"general.alignment is {alignment!r}, not a power of two from 8 up")
        return -(-self._at // alignment) * alignment

    def _check_extent(self, start: int, tensors: Mapping[str, TensorEntry]) -> None:
        """Refuse a tensor that does not lie wholly, and aligned, inside the file."""
        for tensor in tensors.values():
            if tensor.offset % 8:
                raise self._corrupt(f"the tensor {tensor.name!r} does not begin at a multiple of 8")
            end = start + tensor.offset + tensor.num_bytes
            if end > self._size:
                raise self._corrupt(f"the tensor {tensor.name!r} ends at byte {end}, the file at byte {self._size}")
