"""Memory that a Parquet file takes once it is decoded, from the headers of its pages.

In: the path of a file. Out: bytes, or a ValueError. A file of 99 KB can decode to 4 GB, because equal values take no
space, and its footer may claim less. Arrow allocates the sizes in the pages' headers, so these are added up. Encodings
that compute a value from the one before it are refused, so the compressed pages and the number of values bound the size
of arrays. Layout of the file: https://github.com/apache/parquet-format (parquet.thrift), in Thrift's compact protocol.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Memory of a measurement besides its content: its lists, arrays and references.
_ROW_BYTES = 512
# Memory of a value while a column is read: level and number, or index of a text in its dictionary.
_VALUE_BYTES = 16
# Parquet's encodings that normtune writes: PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT.
_ENCODINGS = frozenset((0, 2, 3, 4, 8, 9))
_FIXED_LENGTH = 7
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_MAGIC = b"PAR1"
_MOST_LEVELS = 16
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


def cost(path: Path, most: int) -> int:
    """Most bytes of memory that reading all columns of a file takes; counting stops above `most`.

    Raises:
        ValueError: it is no Parquet file, is damaged, or has an encoding that normtune does not write.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            total = 0
            for size in _sizes(content):
                total += size
                if total > most:
                    break
            return total
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or of another type ({error})") from None


def _sizes(content: mmap.mmap) -> Iterator[int]:
    """Bytes of the rows of a file, then of each of its pages."""
    end = len(content) - 8
    length = int.from_bytes(content[end : end + 4], "little")
    if end < 4 or content[end + 4 :] != _MAGIC or length > end:
        raise ValueError("no Parquet footer")
    footer = _Thrift(content, end - length, end).struct()
    yield _ROW_BYTES * footer[3]
    for group in footer[4]:
        if not 0 <= group[3] <= footer[3]:
            raise ValueError("a wrong number of rows")
        for column in group[1] if group[3] else ():  # without rows no page is read
            yield from _pages(content, column[3])


def _pages(content: mmap.mmap, chunk: dict[int, Any]) -> Iterator[int]:
    """Decoded bytes of each page of a part of a column; `chunk` is its ColumnMetaData."""
    if chunk[1] == _FIXED_LENGTH:
        raise ValueError("values of a fixed length, which normtune does not write")
    place, dictionary, size = chunk[9], chunk.get(11, 0), chunk[7]
    if 0 < dictionary < place:
        place = dictionary
    end, left = place + size, chunk[5]
    if not 0 <= place <= end <= len(content):
        raise ValueError("a column outside of the file")
    while place < end:
        reader = _Thrift(content, place, end)
        header = reader.struct()
        kind, decoded, stored = header[1], header[2], header[3]
        details = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind, 0), {})
        values, encoding = details.get(1, 0), details.get(4 if kind == _DATA_2 else 2, 0)
        if min(decoded, stored, values) < 0 or encoding not in _ENCODINGS:
            raise ValueError("a page that normtune does not write")
        yield decoded + _VALUE_BYTES * values
        left -= 0 if kind == _DICTIONARY else values
        place = reader.place + stored
    if left:
        raise ValueError("a wrong number of values")


class _Thrift:
    """Reads values of Thrift's compact protocol: structs are dictionaries, texts and doubles None."""

    def __init__(self, content: mmap.mmap, place: int, end: int) -> None:
        self._content, self.place, self._end = content, place, end

    def struct(self, levels: int = _MOST_LEVELS) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._integer()
            if field in fields:  # another reader may use the other value
                raise ValueError("a field that is there twice")
            fields[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, levels - 1)
        return fields

    def _value(self, kind: int, levels: int) -> Any:
        if levels < 0:
            raise ValueError("nested too deep")
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            self._skip(self._unsigned())
            return None
        if kind == _STRUCT:
            return self.struct(levels)
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            if count > self._end - self.place:  # each element takes a byte at least
                raise ValueError("a list beyond its end")
            return [self._value(head & 15, levels - 1) for _ in range(count)]
        self._skip({_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}[kind])
        return None

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of over 64 bits")

    def _byte(self) -> int:
        return self._content[self._skip(1) and self.place - 1]

    def _skip(self, count: int) -> int:
        if count > self._end - self.place:
            raise ValueError("a value beyond its end")
        self.place += count
        return count
