"""Finding PTX: in a text, and in or beside what compilers make of it.

- ptxas with ``-lineinfo`` (Triton's way) copies the PTX into the cubin, as the ELF section
  ``.nv_debug_ptx_txt``: the lines end in NUL, comments and ``.loc`` are blank.
- nvcc puts fatbins into objects and executables (``.nv_fatbin``; ``__nv_relfatbin`` with ``-rdc``).
  A fatbin has a header and then entries, each one PTX or cubin, as it is or compressed. NVIDIA
  documents no bits of it; these were read off nvcc 13.0's output, and ``cuobjdump`` agrees.
- Triton's cache and the CuTe DSL keep ``NAME.ptx`` beside ``NAME.cubin``.
"""

from __future__ import annotations

import importlib
import io
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from triton_ext.errors import LayoutError
from triton_ext.ptx.text import without_debug_lines
from triton_ext.reading import read_file

MAX_FILE_BYTES = 1 << 28
"""A larger file is refused."""
MAX_CONTENT_BYTES = 1 << 26
"""How much PTX, and cubins that may have some, is unpacked from a file, all together."""
_MAX_WINDOW_BYTES = 1 << 27  # what Zstandard itself takes unasked
_MAX_NAME_BYTES = 64
_ELF_MAGIC = b"\x7fELF"
_FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
_FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes of the entries
_ENTRY = struct.Struct("<HHIQI20xQ8xQ")  # kind, version, header, size, compressed, flags, original
_PTX_ENTRY, _CUBIN_ENTRY = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000  # of an entry's flags
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_DEBUG_SECTION = ".nv_debug_ptx_txt"


@dataclass
class _Binary:
    """A file that is being read, and how much more may be unpacked from it."""

    name: str
    left: int = MAX_CONTENT_BYTES

    def broken(self, why: str) -> LayoutError:
        return LayoutError("file", self.name, f"is broken: {why}")

    def unpacking(self, size: int) -> None:
        """Take note of some bytes that are to be unpacked. Raises LayoutError: they are too
        many."""
        self.left -= size
        if self.left < 0:
            rule = f"holds more than {MAX_CONTENT_BYTES} bytes of PTX and cubins, unpacked"
            raise LayoutError("file", self.name, f"{rule}; extract the kernel with cuobjdump")


@dataclass(frozen=True)
class PtxText:
    """One PTX module.

    Attributes:
        text: the text of the module.
        origin: where it was found, in words; "" for a file that is PTX itself.
        fatbin: of several fatbins in a row, the number of the one that it was found in.
    """

    text: str
    origin: str = ""
    fatbin: int = 0


def read_ptx(path: str | Path) -> list[PtxText]:
    """The PTX of a file: PTX, a cubin, a fatbin, or an object or executable of nvcc.

    A cubin's embedded PTX has no source lines. If the ``.ptx`` beside it is otherwise the same, or
    if none is embedded, that is what is returned.

    Raises:
        LayoutError: the file cannot be read, is too large (`MAX_FILE_BYTES`,
            `MAX_CONTENT_BYTES`), broken, or has no PTX; the rule says what to do.
    """
    path = Path(path)
    cached = ""
    try:
        data = read_file(path, MAX_FILE_BYTES)
        beside = path.with_suffix(".ptx")
        if _is_binary(data) and beside.exists():
            cached = read_file(beside, MAX_CONTENT_BYTES).decode(errors="replace")
    except OSError as error:
        raise LayoutError("file", str(path), f"cannot be read: {error.strerror}") from None
    if not cached:
        return ptx_of_bytes(data, str(path))
    try:
        found = ptx_of_bytes(data, str(path))
    except LayoutError:
        found = []
    if not found or [_code(module.text) for module in found] == [_code(cached)]:
        return [PtxText(cached, f"{beside.name}, beside the binary")]
    return found


def ptx_of_bytes(data: bytes, name: str = "file") -> list[PtxText]:
    """The PTX of what was read from a file, or from stdin.

    Args:
        data: the bytes of PTX text, of an ELF file or of a fatbin.
        name: the name of the file, for errors.

    Raises:
        LayoutError: a binary that is broken, or has no PTX; or more PTX than `MAX_CONTENT_BYTES`.
    """
    binary = _Binary(name)
    if not _is_binary(data):
        binary.unpacking(len(data))
        return [PtxText(data.decode("utf-8-sig", "replace"))]
    try:
        found = list(_of_binary(data, binary))
    except (struct.error, OverflowError):
        raise LayoutError("file", name, "is cut short or broken") from None
    if not found:
        raise LayoutError(
            "file",
            name,
            "has no PTX in it, and there is no .ptx beside it. Compile with"
            " -gencode arch=compute_90a,code=compute_90a (nvcc keeps PTX for code=compute_...), or"
            " to PTX with -ptx",
        )
    return found


def _is_binary(data: bytes) -> bool:
    return data.startswith((_ELF_MAGIC, _FATBIN_MAGIC))


def _code(text: str) -> list[list[str]]:
    """The words of each line of code, for comparing."""
    words = [line.split() for line in without_debug_lines(text).splitlines()]
    return list(itertools.takewhile(lambda line: line[0] != ".section", words))


def _of_binary(data: bytes, binary: _Binary) -> Iterator[PtxText]:
    if data.startswith(_FATBIN_MAGIC):
        yield from _of_fatbins(data, binary)
        return
    for section, content in _sections(data, binary, (_DEBUG_SECTION, *_FATBIN_SECTIONS)):
        if section == _DEBUG_SECTION:
            yield _debug_text(content, f"section {section}")
        else:
            yield from _of_fatbins(content, binary)


def _debug_text(content: bytes, origin: str) -> PtxText:
    return PtxText(content.replace(b"\0", b"\n").decode(errors="replace"), origin)


def _sections(data: bytes, binary: _Binary, wanted: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Name and content of some sections of an ELF file (ELF specification, "Sections")."""
    if data[4:6] != b"\x02\x01":
        raise LayoutError("file", binary.name, "must be a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<I20xQQ", data, table + size * i) for i in range(count)]
    if not headers:
        return
    if names_index >= count:
        raise LayoutError("file", binary.name, "is a broken ELF file: no section names")
    _, names_offset, names_size = headers[names_index]
    names = data[names_offset : names_offset + names_size]
    for label, offset, length in headers:
        name = names[label : label + _MAX_NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        if name in wanted:
            content = data[offset : offset + length]
            binary.unpacking(len(content))
            yield name, content


def _of_fatbins(data: bytes, binary: _Binary) -> Iterator[PtxText]:
    """The PTX of each fatbin in a row; linkers align them."""
    start, number = data.find(_FATBIN_MAGIC), 0
    while start >= 0:
        _, _, header, length = _FATBIN_HEADER.unpack_from(data, start)
        end = start + max(header + length, len(_FATBIN_MAGIC))
        position = start + header
        while position < end:
            kind, _, skip, size, compressed, flags, original = _ENTRY.unpack_from(data, position)
            if skip < _ENTRY.size:
                raise binary.broken("an entry of a fatbin without a header")
            content = data[position + skip : position + skip + size]
            position += skip + size
            if kind in (_PTX_ENTRY, _CUBIN_ENTRY):
                for each in _of_entry(kind, content, compressed, flags, original, binary):
                    yield replace(each, fatbin=number)
        start, number = data.find(_FATBIN_MAGIC, end), number + 1


def _of_entry(
    kind: int, content: bytes, compressed: int, flags: int, original: int, binary: _Binary
) -> Iterator[PtxText]:
    if flags & (_LZ4 | _ZSTD):
        binary.unpacking(original)
        unpack = _lz4_block if flags & _LZ4 else _zstd
        try:
            content = unpack(content[:compressed], original, binary)
        except LayoutError:
            if kind == _PTX_ENTRY:
                raise
            return  # a cubin need not have PTX
    elif kind == _PTX_ENTRY:
        binary.unpacking(len(content))
    if kind == _PTX_ENTRY:
        yield PtxText(content.rstrip(b"\0").decode(errors="replace"), "fatbin")
    elif content.startswith(_ELF_MAGIC):
        for section, text in _sections(content, binary, (_DEBUG_SECTION,)):
            yield _debug_text(text, f"section {section} of a cubin in the fatbin")


def _lz4_block(data: bytes, size: int, binary: _Binary) -> bytes:
    """Decompress an LZ4 block of `size` bytes (LZ4 Block Format Description)."""
    out = bytearray()
    position = 0

    def length(total: int) -> int:
        nonlocal position
        more = 255 if total == 15 else 0
        while more == 255:
            more = data[position]
            position += 1
            total += more
        return total

    try:
        while position < len(data) and len(out) < size:
            token = data[position]
            position += 1
            literals = length(token >> 4)
            out += data[position : position + literals]
            position += literals
            if position >= len(data):
                break
            distance = data[position] | data[position + 1] << 8
            position += 2
            count = length(token & 15) + 4
            if not 0 < distance <= len(out) or len(out) + count > size:
                raise IndexError
            # A match may run into what it writes itself.
            repeated = out[-distance:] * (count // distance + 1)
            out += repeated[:count]
    except IndexError:
        raise binary.broken("LZ4 data that cannot be read") from None
    if len(out) != size:
        raise binary.broken(f"{len(out)} of {size} bytes of PTX")
    return bytes(out)


def _zstd(data: bytes, size: int, binary: _Binary) -> bytes:
    """Decompress Zstandard, with Python's own module (3.14) or the package ``zstandard``.

    What the data say of their size is not believed: no more than `size` bytes are made.
    """
    for module in ("compression.zstd", "zstandard"):
        try:
            zstd = importlib.import_module(module)
        except ImportError:
            continue
        try:
            if module == "zstandard":
                unpacker = zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
                content = unpacker.stream_reader(io.BytesIO(data)).read(size)
            else:
                window = {
                    zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_BYTES.bit_length() - 1
                }
                content = zstd.ZstdDecompressor(options=window).decompress(data, max_length=size)
        except (zstd.ZstdError, EOFError) as error:
            raise binary.broken(f"Zstandard: {error}") from None
        return bytes(content)
    raise LayoutError(
        "file",
        binary.name,
        "its PTX is compressed with Zstandard. Install the package zstandard (or use Python 3.14),"
        " compile with nvcc --compress-mode=none (or speed), or give the output of"
        " cuobjdump -ptx",
    )
