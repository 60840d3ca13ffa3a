"""The descriptors of whole kernels that NVIDIA's CuTe DSL compiles (``make oracle``)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from sites import SUPPORT

from triton_ext import LinearLayout
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor, raw_fields
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.layouts.atoms import Swizzle, SwizzleAtom
from triton_ext.layouts.cute import derive_steps
from triton_ext.layouts.gf2 import powers_below
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import parse_ptx

STAGES = 2
STORAGE_BYTES = 1024  # barriers, in front of the tiles that are aligned to 1024
WIDTHS = {"INTER": 0, "SW32": 32, "SW64": 64, "SW128": 128}
KINDS = {
    "Float16": ("f16", "f16"), "BFloat16": ("f16", "bf16"), "TFloat32": ("tf32", "tf32"),
    "Float8E4M3FN": ("f8f6f4", "e4m3"), "Float8E5M2": ("f8f6f4", "e5m2"),
    "Int8": ("i8", "s8"), "Uint8": ("i8", "u8"),
}  # fmt: skip
"""The DSL's types -> kind of tcgen05.mma, name in the instruction descriptor."""
BITS = {"Float16": 16, "BFloat16": 16, "TFloat32": 32}


def job(arch, types, tile, instruction, atoms, ctas=1):
    d_type = "Int32" if "nt8" in types[0] else "Float32"
    return {
        "arch": arch, "types": [*types, d_type], "tile": tile, "instruction": instruction,
        "atoms": atoms, "ctas": ctas, "stages": STAGES,
    }  # fmt: skip


def jobs(arch):
    """Types of 8, 16 and 32 bits, each swizzle and major-ness of A and of B, shapes, CTA pairs."""
    half, single = ("Float16", "Float16"), ("TFloat32", "TFloat32")
    names = [f"{major}_{width}" for major in ("K", "MN") for width in WIDTHS]
    m = {90: 64, 100: 128}[arch]
    for a, b in zip(names, names[3:] + names[:3], strict=True):
        yield job(arch, half, [128, 128, 64], [m, 128], [a, b])
    yield job(arch, ("BFloat16", "BFloat16"), [m, 64, 128], [m, 64], ["K_SW128", "K_SW128"])
    yield job(arch, ("BFloat16", "BFloat16"), [256, 256, 32], [m, 256], ["K_SW64", "MN_SW128"])
    yield job(arch, half, [m, 24 if arch == 90 else 48, 64], [m, 24 if arch == 90 else 48],
              ["MN_SW64", "K_SW128"])  # fmt: skip
    float8 = ("Float8E4M3FN", "Float8E5M2")
    for a, b in (("K_SW128", "K_SW64"), ("K_SW32", "K_INTER"), ("K_INTER", "K_SW128")):
        yield job(arch, float8, [128, 128, 128], [m, 128], [a, b])
    yield job(arch, ("Int8", "Int8"), [m, 64, 64], [m, 64], ["K_SW64", "K_SW32"])
    yield job(arch, ("Uint8", "Uint8"), [m, 64, 128], [m, 64], ["K_SW128", "K_SW128"])
    if arch == 90:
        yield job(arch, half, [128, 64, 128], [64, 64], ["K_SW128", "MN_SW64"])
        yield job(arch, half, [192, 256, 64], [64, 256], ["MN_SW128", "K_SW32"])
        return
    for a, b in zip(names[4:], names[:1:-1], strict=False):  # 8 bits, MN-major too
        yield job(arch, float8, [128, 128, 128], [128, 128], [a, b])
    yield job(arch, ("Int8", "Int8"), [128, 128, 64], [128, 128], ["MN_SW128", "MN_SW64"])
    for a, b in (("K_SW128", "K_SW64"), ("K_SW32", "K_INTER"), ("MN_SW128_32B", "K_SW128"),
                 ("K_SW64", "MN_SW128_32B")):  # fmt: skip
        yield job(arch, single, [128, 128, 32], [128, 128], [a, b])
    yield job(arch, half, [64, 128, 64], [64, 128], ["K_SW128", "MN_SW128"])
    for a, b in (("K_SW128", "K_SW128"), ("MN_SW128", "MN_SW64"), ("K_SW32", "MN_INTER")):
        yield job(arch, half, [256, 128, 64], [256, 128], [a, b], 2)
    yield job(arch, half, [256, 256, 128], [256, 256], ["K_SW128", "MN_SW128"], 2)
    yield job(arch, half, [128, 64, 64], [128, 64], ["MN_SW64", "K_SW128"], 2)
    yield job(arch, float8, [256, 128, 128], [256, 128], ["K_SW128", "MN_SW64"], 2)
    yield job(arch, single, [256, 128, 32], [256, 128], ["K_SW128", "MN_SW128_32B"], 2)


def atom_layout(name, bits):
    """A swizzle atom: ``offset`` -> (M or N, K)."""
    major, width = name.split("_", 1)
    if width != "SW128_32B":
        return major, SwizzleAtom(major, WIDTHS[width], bits).to_linear_layout()
    # CUTLASS, mma_traits_sm90_gmma.hpp and ..._sm100: Swizzle<2,5,2> over 8 rows of 128 bytes
    size, swizzle = bits // 8, Swizzle(2, 5, 2)
    row = 128 // size
    addresses = {
        "dim0": [(swizzle(size * mn) // size,) for mn in powers_below(row)],
        "dim1": [(swizzle(128 * k) // size,) for k in powers_below(8)],
    }
    return major, LinearLayout(addresses, {"offset": 8 * row}).invert()


def tile_layout(name, bits, tile):
    """Atoms side by side: along the strided dimension first, as the worker's kernels order them.

    The extents of `tile` that are not powers of two are rounded up.
    """
    major, atom = atom_layout(name, bits)
    extents = dict(zip(("dim0", "dim1"), tile, strict=True))
    layout = atom
    for dim in ("dim0", "dim1") if major == "K" else ("dim1", "dim0"):
        copies = -(-extents[dim] // atom.out_dims[dim])
        layout *= LinearLayout.identity_1d(1 << (copies - 1).bit_length(), "offset", dim)
    return major, layout.transpose_outs(["dim0", "dim1"])


@pytest.fixture(scope="module", params=[90, 100])
def kernels(request):
    """(job, its kernel as parsed)."""
    pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    todo = list(jobs(request.param))
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "cute_worker.py")],
        input=json.dumps(todo),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    texts = [json.loads(line) for line in finished.stdout.splitlines()]
    return list(zip(todo, texts, strict=True))


def operand(fields, which):
    """The derived operand 0 (A) or 1 (B) of a job."""
    bits = BITS.get(fields["types"][which], 8)
    m_or_n, k = fields["tile"][which] // fields["ctas"], fields["tile"][2]
    extent = fields["instruction"][which] // fields["ctas"]
    _, layout = tile_layout(fields["atoms"][which], bits, (m_or_n, k))
    rows = layout.out_dims["dim0"]
    # derive_operand wants an extent that divides the tile: of three rows of atoms, one for each
    whole = extent if rows % extent == 0 else rows
    return derive_operand(layout, bits, (whole, 256 // bits), arch=fields["arch"]), m_or_n // extent


def test_every_descriptor_is_the_derived_one(kernels):
    """All fields of each MMA's descriptors, and the start address of each subtile."""
    for fields, text in kernels:
        module = parse_ptx(text)
        [kernel] = module.kernels
        folder = Folder(kernel, module.variables)
        (a, a_tiles), (b, b_tiles) = (operand(fields, which) for which in (0, 1))
        found, starts = Counter(), []
        for instruction in kernel.instructions:
            if not instruction.opcode.startswith(("wgmma.mma_async", "tcgen05.mma")):
                continue
            pair = []
            for derived, text_of in zip((a, b), instruction.operands[1:3], strict=True):
                bits = folder.operand(text_of, 64, instruction)
                assert bits.is_constant(64), f"{fields}: {instruction}"
                decoded = SmemDescriptor.decode(bits.value, fields["arch"])
                assert derived.matches(decoded), f"{fields}: {decoded} {derived.descriptor}"
                pair.append(decoded.start_address)
            found[tuple(pair)] += 1
        bits_of = [BITS.get(name, 8) for name in fields["types"][:2]]
        a_bytes = fields["tile"][0] // fields["ctas"] * fields["tile"][2] * bits_of[0] // 8
        b_start = STORAGE_BYTES + STAGES * a_bytes
        steps = len(a.advances[0])
        assert steps == len(b.advances[0])
        starts = Counter(
            (STORAGE_BYTES + a.advances[i][k], b_start + b.advances[j][k])
            for i in range(a_tiles)
            for j in range(b_tiles)
            for k in range(steps)
        )
        assert found == starts, fields


def test_offsets_are_those_of_cutes_algebra(kernels):
    """LBO and SBO bit for bit, used or not: 16 for a K-major swizzle, else 0 where not used."""
    for fields, text in kernels:
        module = parse_ptx(text)
        [kernel] = module.kernels
        folder = Folder(kernel, module.variables)
        first = next(
            instruction
            for instruction in kernel.instructions
            if instruction.opcode.startswith(("wgmma.mma_async", "tcgen05.mma"))
        )
        for which, name in enumerate(fields["atoms"]):
            major, width = name.split("_", 1)
            if width not in WIDTHS:
                continue
            bits = BITS.get(fields["types"][which], 8)
            tile = (fields["tile"][which] // fields["ctas"], fields["tile"][2])
            extent = fields["instruction"][which] // fields["ctas"]
            steps = derive_steps(
                SwizzleAtom(major, WIDTHS[width], bits), tile, (extent, 256 // bits)
            )
            value = folder.operand(first.operands[1 + which], 64, first).value
            decoded = SmemDescriptor.decode(value, fields["arch"])
            assert decoded.leading_byte_offset == steps.leading_byte_offset, (fields, which)
            assert decoded.stride_byte_offset == steps.stride_byte_offset, (fields, which)


def test_instruction_descriptors(kernels):
    """tcgen05: all bits but the two negations, which a tiled MMA takes from a kernel argument."""
    for fields, text in kernels:
        module = parse_ptx(text)
        [kernel] = module.kernels
        folder = Folder(kernel, module.variables)
        kind, a_type = KINDS[fields["types"][0]]
        majors = [atom.split("_")[0] for atom in fields["atoms"]]
        for instruction in kernel.instructions:
            if instruction.opcode.startswith("tcgen05.mma"):
                assert f".kind::{kind}" in instruction.opcode
                assert f".cta_group::{fields['ctas']}" in instruction.opcode
                expected = InstructionDescriptor(
                    kind, *fields["instruction"], a_type, KINDS[fields["types"][1]][1],
                    "s32" if kind == "i8" else "f32", *majors,
                    saturate=kind == "i8",  # the DSL always sets it
                )  # fmt: skip
                expected.check_shape(fields["ctas"])
                bits = folder.operand(instruction.operands[3], 32, instruction)
                unknown = raw_fields(~bits.known & 0xFFFFFFFF, kind)
                assert {name for name, value in unknown.items() if value} <= {
                    "negate_a", "negate_b",
                }  # fmt: skip
                assert bits.value == expected.encode()
            elif instruction.opcode.startswith("wgmma.mma_async"):
                m, n = fields["instruction"]
                assert f".m{m}n{n}k{256 // BITS.get(fields['types'][0], 8)}." in instruction.opcode
                if kind == "f16":
                    transposed = [str(int(major == "MN")) for major in majors]
                    assert list(instruction.operands[-2:]) == transposed


def test_configurations_cover_what_they_should():
    every = [fields for arch in (90, 100) for fields in jobs(arch)]
    assert len(every) >= 40
    seen = {(f["arch"], BITS.get(f["types"][0], 8), f["ctas"]) for f in every}
    assert seen >= {(90, 8, 1), (90, 16, 1), (100, 8, 1), (100, 16, 2), (100, 32, 1), (100, 8, 2)}
    for arch in (90, 100):
        for which in (0, 1):
            atoms = {f["atoms"][which] for f in every if f["arch"] == arch}
            assert atoms >= {f"{major}_{width}" for major in ("K", "MN") for width in WIDTHS}
