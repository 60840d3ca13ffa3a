"""Files that are hostile: read within limits of size, memory and time, or refused by name."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from mutations import some
from ptx_samples import PTX, fatbin

from triton_ext import LayoutError
from triton_ext.cli import main
from triton_ext.ptx import files
from triton_ext.ptx.files import MAX_CONTENT_BYTES, read_ptx

MEMORY = 1 << 30
CHILD = f"""
import resource, sys
from triton_ext import LayoutError
from triton_ext.ptx.files import read_ptx
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
for path in sys.argv[1:]:
    try:
        print(len(read_ptx(path)), "modules")
    except LayoutError as error:
        print("refused:", error.rule)
"""
"""Reads files with so little memory that a reader which takes more of it ends in a MemoryError."""


def overlapping_sections(name, content, count):
    """An ELF file whose sections, all of one name, are all the same bytes."""
    names = b"\0" + name + b"\0.shstrtab\0"
    head = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, count + 1, count)
    table = 64 + 64 * (count + 1)
    section = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, table, len(content), 0, 0, 1, 0)
    last = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, table + len(content), len(names), 0, 0, 1, 0)
    return b"\x7fELF\x02\x01" + bytes(10) + head + section * count + last + content + names


def lz4_zeros(size):
    """An LZ4 block that makes `size` zeros out of a 255th of the bytes."""
    count = size - 6
    more = count - 4 - 15
    return b"\x1f\0\x01\0" + b"\xff" * (more // 255) + bytes([more % 255]) + b"\x50" + bytes(5)


def zstd_frame(declared, blocks):
    """A Zstandard frame that says it holds `declared` bytes; its blocks repeat one byte (RLE)."""
    body = [struct.pack("<I", 0xFD2FB528), b"\xe0", struct.pack("<Q", declared)]
    for i in range(blocks):
        header = (128 << 10) << 3 | 1 << 1 | (i == blocks - 1)
        body.append(struct.pack("<I", header)[:3] + b" ")
    return b"".join(body)


def hostile():
    """(name, bytes, what is said of it)."""
    big, said = MAX_CONTENT_BYTES, f"holds more than {MAX_CONTENT_BYTES} bytes"
    text = b".version 8.0\0" * 80_000
    yield "sections", overlapping_sections(b".nv_debug_ptx_txt", text, 60_000), said
    yield "fatbins", overlapping_sections(b".nv_fatbin", text, 60_000), said
    yield "nameless", overlapping_sections(b"n" * (1 << 20), b"", 65_000), "has no PTX"
    packed = lz4_zeros(big // 2)
    yield "lz4", fatbin(*[(1, packed, 0x2000, len(packed), big // 2)] * 16), said
    yield "lz4-large", fatbin((1, packed, 0x2000, len(packed), big + 1)), said
    declared = zstd_frame(1 << 60, 1)
    yield "zstd-96", fatbin((1, declared, 0x8000, len(declared), 1000)), ""
    many = zstd_frame(49152 * 131072, 49152)
    yield "zstd-6G", fatbin((1, many, 0x8000, len(many), 1 << 20)), ""
    yield "zstd-said", fatbin((1, many, 0x8000, len(many), 1 << 40)), said
    yield "text", PTX.encode() + b"\n" * big, said


def test_memory_is_bounded(tmp_path):
    pytest.importorskip("zstandard")
    cases = list(hostile())
    for name, data, _ in cases:
        (tmp_path / name).write_bytes(data)
        assert name == "text" or len(data) < 8 << 20
    command = [sys.executable, "-c", CHILD, *(str(tmp_path / name) for name, *_ in cases)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert not finished.returncode, finished.stderr[-2000:]
    for (name, _, said), line in zip(cases, finished.stdout.splitlines(), strict=True):
        legal = (f"refused: {said}",) if said else ("refused", "1 modules")
        assert line.startswith(legal), (name, line)


def test_mutated_headers():
    """Sizes and offsets of any value, in the headers of all that a binary may consist of."""
    generator = random.Random(7)
    packed = lz4_zeros(4096)
    inner = fatbin((1, packed, 0x2000, len(packed), 4096), (1, PTX.encode(), 0, 0, 0))
    good = overlapping_sections(b".nv_fatbin", inner, 3)
    values = [0, 1, 2, 63, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]
    read = 0
    for _ in range(some(1000)):
        wrong = bytearray(good if generator.random() < 0.5 else inner)
        for _ in range(generator.randint(1, 3)):
            width = generator.choice([2, 4, 8])
            at = generator.randrange(4, len(wrong) - 8)
            value = generator.choice(values) % (1 << 8 * width)
            wrong[at : at + width] = value.to_bytes(width, "little")
        with contextlib.suppress(LayoutError):
            read += bool(files.ptx_of_bytes(bytes(wrong)))
    assert read


def test_what_is_no_file(tmp_path):
    """Pipes and devices have no end, or hang."""
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "beside.ptx")
    (tmp_path / "beside.cubin").write_bytes(overlapping_sections(b".text", b"", 1))
    for path in ("/dev/zero", tmp_path / "fifo", tmp_path / "beside.cubin"):
        with pytest.raises(LayoutError, match="must be a regular file"):
            read_ptx(path)
        for command in ("ptx", "layout"):
            finished = CliRunner().invoke(main, [command, str(path)])
            assert finished.exit_code == 2
    with pytest.raises(LayoutError, match="cannot be read"):
        read_ptx(tmp_path)


def test_files_that_are_too_large(tmp_path, monkeypatch):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(files.MAX_FILE_BYTES + 1)
    with pytest.raises(LayoutError, match=f"must have at most {files.MAX_FILE_BYTES} bytes"):
        read_ptx(tmp_path / "sparse")
    read, write = os.pipe()
    endless = threading.Thread(target=_write_on, args=(write,))
    endless.start()
    with open(read, "rb") as stdin:
        command = [sys.executable, "-m", "triton_ext", "layout", "-"]
        finished = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    endless.join()
    assert finished.returncode == 2
    assert "stdin" in finished.stderr
    assert "must have at most" in finished.stderr


def _write_on(descriptor):
    try:
        while os.write(descriptor, b"#" * 65536):
            pass
    except BrokenPipeError:
        os.close(descriptor)


def test_a_time_limit(tmp_path):
    """However long a file takes: here one of many functions, none of which ends."""
    path = tmp_path / "slow.ptx"
    path.write_text(PTX.split(".visible")[0] + ".visible .func f(" * 400_000)
    finished = CliRunner().invoke(main, ["ptx", str(path), "--timeout", "0.01"])
    assert finished.exit_code == 2
    assert "timeout = 0.01" in finished.output
    finished = CliRunner().invoke(main, ["ptx", str(path), "--timeout", "3600"])
    assert finished.exit_code == 0, finished.output


def test_no_control_characters_are_printed(tmp_path):
    """Of .file names, labels, opcodes and kernels."""
    generator = random.Random(3)
    hostile = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202e", "\x08" * 20, "\r"]
    lines = PTX.splitlines()
    shown = 0
    for number in range(some(100)):
        made = list(lines)
        for _ in range(3):
            at = generator.randrange(len(made))
            line = made[at]
            where = generator.randrange(len(line) + 1)
            made[at] = line[:where] + generator.choice(hostile) + line[where:]
        made.insert(3, f'.file 1 "{generator.choice(hostile)}.py"\n.loc 1 1 1')
        path = tmp_path / f"{number}.ptx"
        path.write_text("\n".join(made))
        output = CliRunner().invoke(main, ["ptx", str(path)]).output
        shown += "\\x" in output or "\\u202e" in output
        assert not set(output) & {"\x1b", "\x07", "\x9b", "\x08", "\u202e", "\r"}
    assert shown
