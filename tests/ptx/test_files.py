"""Where PTX is found: in cubins, fatbins, objects and executables, and beside them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import some
from ptx_samples import DATA, PTX, fatbin, listing
from sites import triton_sites

from triton_ext import LayoutError
from triton_ext.cli import main
from triton_ext.ptx.files import ptx_of_bytes, read_ptx


def elf(**sections):
    """A 64-bit little-endian ELF file with these sections (ELF specification)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    content, headers = bytearray(64), [bytes(64)]
    for name, data in [*sections.items(), (".shstrtab", names)]:
        label = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(
            struct.pack("<IIQQQQIIQQ", label, 1, 0, 0, len(content), len(data), 0, 0, 1, 0)
        )
        content += data
    table = len(content)
    content[:64] = (
        b"\x7fELF\x02\x01"
        + bytes(10)
        + struct.pack(
            "<HHIQQQIHHHHHH",
            2,
            190,
            1,
            0,
            0,
            table,
            0,
            64,
            0,
            0,
            64,
            len(headers),
            len(headers) - 1,
        )
    )
    return bytes(content) + b"".join(headers)


def lz4(data):
    """A valid LZ4 block: greedy, quadratic, for tests."""
    out, start, at = bytearray(), 0, 0

    def sequence(literals, match, distance):
        token = min(len(literals), 15) << 4 | (min(match - 4, 15) if match else 0)
        parts = [bytes([token])]
        if len(literals) >= 15:
            more = len(literals) - 15
            parts.append(b"\xff" * (more // 255) + bytes([more % 255]))
        parts.append(literals)
        if match:
            parts.append(struct.pack("<H", distance))
            if match - 4 >= 15:
                more = match - 19
                parts.append(b"\xff" * (more // 255) + bytes([more % 255]))
        out.extend(b"".join(parts))

    while at < len(data) - 12:
        found = data.rfind(data[at : at + 4], max(0, at - 65535), at + 3)
        if found < 0:
            at += 1
            continue
        length = 4
        while at + length < len(data) - 5 and data[found + length] == data[at + length]:
            length += 1
        sequence(data[start:at], length, at - found)
        at += length
        start = at
    sequence(data[start:], 0, 0)
    return bytes(out)


def debug_section(text):
    """As ptxas writes it: no comments, no .loc, NUL for each end of a line."""
    kept = [
        "" if line.strip().startswith((".loc", "//", ".file")) else line
        for line in text.split("\n")
    ]
    return "\0".join(kept).encode()


def texts(found):
    return [module.text for module in found]


def test_ptx_in_a_cubin(tmp_path):
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(elf(**{".text.k": b"\1\2", ".nv_debug_ptx_txt": debug_section(PTX)}))
    [alone] = read_ptx(cubin)
    assert alone.origin == "section .nv_debug_ptx_txt"
    assert [item.notes for item in listing(alone.text)] == [item.notes for item in listing(PTX)]
    assert listing(alone.text)[0].instruction.source is None
    (tmp_path / "k.ptx").write_text(PTX)  # the same, with source lines
    [beside] = read_ptx(cubin)
    assert (beside.text, beside.origin) == (PTX, "k.ptx, beside the binary")
    (tmp_path / "k.ptx").write_text(PTX.replace("1024", "2048"))  # of another compilation
    assert texts(read_ptx(cubin)) == [alone.text]
    assert "PTX: section .nv_debug_ptx_txt" in CliRunner().invoke(main, ["ptx", str(cubin)]).output


def test_ptx_beside_a_cubin_without(tmp_path):
    """As in Triton's cache, where line numbers are switched off."""
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(elf(**{".text.k": b"\1\2"}))
    with pytest.raises(LayoutError, match="has no PTX in it, and there is no"):
        read_ptx(cubin)
    (tmp_path / "k.ptx").write_text(PTX)
    assert texts(read_ptx(cubin)) == [PTX]


@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin", None])
def test_ptx_in_fatbins(section):
    data = PTX.encode()
    packed = lz4(data)
    cubin = elf(**{".nv_debug_ptx_txt": debug_section(PTX)})
    first = fatbin((2, b"\x7fELF\2\1" + bytes(58), 0, 0, 0), (1, data + b"\0\0", 0, 0, 0))
    second = fatbin((2, cubin, 0, 0, 0), (1, packed, 0x2000, len(packed), len(data)))
    both = first + bytes(8) + second
    found = ptx_of_bytes(elf(**{section: both}) if section else both)
    assert texts(found)[0] == texts(found)[2] == PTX
    assert found[1].origin == "section .nv_debug_ptx_txt of a cubin in the fatbin"
    assert len(found) == 3


def test_a_fatbin_for_several_architectures(tmp_path):
    """The PTX for targets that are not known is left out; alone it is refused."""
    old = PTX.replace("sm_100a", "sm_75").encode()
    path = tmp_path / "k.fatbin"
    path.write_bytes(fatbin((1, old, 0, 0, 0), (1, PTX.encode(), 0, 0, 0)))
    found = json.loads(CliRunner().invoke(main, ["ptx", str(path), "--format", "json"]).output)
    opcodes = [item["opcode"].split(".")[0] for item in found["instructions"]]
    assert opcodes == ["tcgen05", "mbarrier"]
    path.write_bytes(fatbin((1, old, 0, 0, 0)))
    wrong = CliRunner().invoke(main, ["ptx", str(path)])
    assert wrong.exit_code == 2
    assert "sm_75" in wrong.output


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF", "must be a 64-bit little-endian ELF"),
        (b"\x7fELF\x02\x01" + bytes(20), "cut short or broken"),
        (b"\x7fELF\x01\x01" + bytes(100), "must be a 64-bit"),
        (fatbin((1, b"abc", 0, 0, 0))[:60], "cut short or broken"),
        (fatbin((1, b"\x00\x01\x00", 0x2000, 3, 100)), "LZ4 data"),
        (fatbin((1, b"\x10a", 0x2000, 2, 100)), "1 of 100 bytes"),
        (fatbin((1, b"\x10a", 0x2000, 2, 1 << 60)), "holds more than 67108864 bytes"),
        (fatbin((2, b"abc", 0, 0, 0)), "has no PTX"),
    ],
)
def test_broken_binaries(data, message):
    with pytest.raises(LayoutError, match=message):
        ptx_of_bytes(data)


def test_zstandard_says_what_to_do(monkeypatch):
    import triton_ext.ptx.files as module

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(LayoutError, match="--compress-mode=none"):
        ptx_of_bytes(fatbin((1, b"(\xb5/\xfd", 0x8000, 4, 100)))


@settings(max_examples=some(300))
@given(st.data())
def test_mangled_binaries_raise_only_layout_error(data):
    packed = lz4(PTX.encode())
    good = elf(**{
        ".nv_debug_ptx_txt": debug_section(PTX),
        ".nv_fatbin": fatbin((1, packed, 0x2000, len(packed), len(PTX)), (2, b"\x7fELF", 0, 0, 0)),
    })  # fmt: skip
    wrong = bytearray(good)
    for _ in range(data.draw(st.integers(1, 8))):
        wrong[data.draw(st.integers(6, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = ptx_of_bytes(bytes(wrong[: data.draw(st.integers(0, len(wrong)))]))
        assert found
    except LayoutError:
        pass


COMPILE = """
from triton_ext.kernels.spec import kernel_spec
from triton_ext.kernels.launch import compile_matmul, kernel_constants
config = kernel_spec(100, "fp16", block_n=64, stages=2)
compile_matmul(config, kernel_constants(config))
"""


@pytest.mark.parametrize("site", triton_sites())
def test_tritons_cache(site, tmp_path):
    """The cubin's own PTX says what the .ptx beside it says, but for source lines."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    if site:
        environment["PYTHONPATH"] = str(site)
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True)
    [cubin] = tmp_path.rglob("*.cubin")
    [beside] = read_ptx(cubin)
    assert beside.origin == f"{cubin.stem}.ptx, beside the binary"
    cubin.with_suffix(".ptx").unlink()
    [embedded] = read_ptx(cubin)
    assert embedded.origin == "section .nv_debug_ptx_txt"
    with_lines, without = listing(beside.text), listing(embedded.text)
    assert [item.notes for item in with_lines] == [item.notes for item in without]
    assert [item.instruction.line for item in with_lines] == [
        item.instruction.line for item in without
    ]
    assert all(item.instruction.source for item in with_lines)
    assert not any(item.instruction.source for item in without)


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def cuobjdump():
    """NVIDIA's own reader of fatbins, as Triton brings it along."""
    found = importlib.util.find_spec("triton")
    path = found and Path(found.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return path if path and path.exists() else shutil.which("cuobjdump")


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "k.cu").write_text((DATA / "nvcc_sm90.cu").read_text())

    def compiled(output, *options, code="[sm_90a,compute_90a]"):
        command = ["nvcc", "-gencode", f"arch=compute_90a,code={code}", *options, "k.cu"]
        subprocess.run([*command, "-o", output], cwd=folder, check=True, capture_output=True)
        return folder / output

    return compiled


@needs_nvcc
@pytest.mark.parametrize("mode", ["none", "speed", "default"])
@pytest.mark.parametrize("options", [("-c",), ("-c", "-rdc=true"), ("-fatbin",)])
def test_nvccs_objects(nvcc, mode, options):
    if mode == "default":
        pytest.importorskip("zstandard")
    path = nvcc(f"{mode}{len(options)}{options[0]}.o", *options, f"--compress-mode={mode}")
    [found] = read_ptx(path)
    expected = [item.notes for item in listing((DATA / "nvcc_sm90.ptx").read_text())]
    assert [item.notes for item in listing(found.text)] == expected
    tool = cuobjdump()
    if tool:
        shown = subprocess.run([tool, "-ptx", path], capture_output=True, text=True).stdout
        assert " ".join(found.text.split()) in " ".join(shown.split())


@needs_nvcc
def test_nvccs_cubin(nvcc):
    expected = [item.notes for item in listing((DATA / "nvcc_sm90.ptx").read_text())]
    [found] = read_ptx(nvcc("k.cubin", "-cubin", "-lineinfo", code="sm_90a"))
    assert [item.notes for item in listing(found.text)] == expected
    with pytest.raises(LayoutError, match="has no PTX"):
        read_ptx(nvcc("bare.cubin", "-cubin", code="sm_90a"))
