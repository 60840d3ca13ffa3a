"""Matrix and instruction descriptors: bits, derivation, and what the compilers emit."""

from __future__ import annotations

import itertools
import random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_configurations import ARCHES, compiled_configurations
from sites import ALL, triton_sites

from triton_ext import LayoutError, LinearLayout, NVMMAShared, nvmma_shared_to_linear_layout
from triton_ext.commands.descriptor import descriptor as descriptor_command
from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor, legal_n
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.smem_descriptor import SWIZZLE_CODES, SmemDescriptor, problems
from triton_ext.kernels.element_types import ELEMENT_TYPES
from triton_ext.kernels.spec import kernel_spec
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.cute import derive_steps
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import parse_ptx

MAJORS = ("K", "MN")


@st.composite
def smem_descriptors(draw):
    arch = draw(st.sampled_from(ARCHES))
    offsets = st.integers(0, (1 << 14) - 1).map(lambda units: 16 * units)
    width, atomicity = draw(st.sampled_from(list(SWIZZLE_CODES[arch].values())))
    return SmemDescriptor(
        arch, draw(offsets), draw(offsets), draw(offsets), width, atomicity,
        draw(st.integers(0, 7)), draw(st.integers(0, 1)) if arch == 100 else 0,
    )  # fmt: skip


@given(smem_descriptors())
def test_encoding_and_decoding_are_inverse(descriptor):
    value = descriptor.encode()
    assert problems(value, descriptor.arch) == []
    assert SmemDescriptor.decode(value, descriptor.arch) == descriptor


def decodes_or_raises(value, arch):
    """Only typed errors, and what decodes encodes to the same bits."""
    try:
        decoded = SmemDescriptor.decode(value, arch)
    except LayoutError:
        assert not 0 <= value < 2**64 or problems(value, arch)
        return False
    assert decoded.encode() == value
    return True


@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(-5, 2**70)), st.sampled_from(ARCHES))
def test_any_number_decodes_or_raises_layout_error(value, arch):
    decodes_or_raises(value, arch)


def test_ten_thousand_numbers_decode_or_raise_layout_error():
    """Half of them any bits, half with random bits in the fields alone."""
    generator, legal = random.Random(1), 0
    fields = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 7 << 61
    for number in range(10_000):
        arch, value = ARCHES[number % 2], generator.getrandbits(64)
        if number // 2 % 2:
            value = value & fields | (1 << 46 if arch == 100 else 0)
        legal += decodes_or_raises(value, arch)
    assert 1000 < legal < 5000


def test_the_constant_of_the_design_document():
    """A of 128x64 fp16, K-major, 128B: swizzle 2, version 1, SBO 64, LBO 1, in 16-byte units."""
    assert SmemDescriptor(100, 0, 16, 1024, 128).encode() == 0x4000404000010000
    assert SmemDescriptor(90, 0, 16, 1024, 128).encode() == 0x4000004000010000


@pytest.mark.parametrize(
    ("value", "arch", "message"),
    [
        (1 << 14, 90, "reserved bits 14"),
        (1 << 46, 90, "reserved bits 46"),
        (0, 100, "version field (bits 46 to 48) is 0"),
        (3 << 61 | 1 << 46, 100, "swizzle field is 3"),
        (1 << 64, 100, "integer in [0, 2**64)"),
        (True, 100, "integer in [0, 2**64)"),
        (0, "sm_80", "must be sm_90"),
    ],
)
def test_illegal_descriptors(value, arch, message):
    with pytest.raises(LayoutError) as caught:
        SmemDescriptor.decode(value, arch)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ((90, 8, 0, 0, 128), "start_address"),
        ((90, 1 << 18, 0, 0, 128), "start_address"),
        ((90, 0, -16, 0, 128), "leading_byte_offset"),
        ((90, 0, 0, 1.5, 128), "stride_byte_offset"),
        ((90, 0, 0, 0, 48), "swizzle_byte_width"),
        ((90, 0, 0, 0, 128, 32), "swizzle_byte_width"),
        ((100, 0, 0, 0, 128, 16, 8), "base_offset"),
        ((90, 0, 0, 0, 128, 16, 0, 1), "lbo_mode"),
    ],
)
def test_illegal_fields(arguments, argument):
    with pytest.raises(LayoutError) as caught:
        SmemDescriptor(*arguments)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("width", "major", "is_read"), [(128, "K", False), (128, "MN", True), (0, "K", True)]
)
def test_which_operands_need_the_leading_offset(width, major, is_read):
    """PTX ISA, "Leading dimension byte offset": not those that are swizzled and K-major."""
    descriptor = SmemDescriptor(90, 0, 16, 1024, width)
    assert descriptor.reads_leading(major) == is_read
    assert ("LBO 16 (not read)" in descriptor.strides(major)) != is_read


def test_architecture_names():
    names = (90, "sm_90", "sm_90a", "SM_100A", 100, "sm_103", "100")
    assert [architecture(name) for name in names] == [90, 90, 90, 100, 100, 100, 100]


# ----------------------------------------------------------------------------- derivation


def test_seed_002_section_3_k_major_128b():
    """Seed 002, Sec. 3.3 and 3.4: fields, and the start address of all 16 subtiles."""
    layout = nvmma_shared_to_linear_layout((128, 128), NVMMAShared(128, 16))
    derived = derive_operand(layout, 16, (64, 16), arch=100)
    assert derived.major == "K"
    assert (derived.descriptor.stride_byte_offset, derived.descriptor.leading_byte_offset) == (
        1024, 16,
    )  # fmt: skip
    assert derived.advances == (
        (0, 32, 64, 96, 16384, 16416, 16448, 16480),
        (8192, 8224, 8256, 8288, 24576, 24608, 24640, 24672),
    )


def test_seed_002_section_4_mn_major_64b():
    """Seed 002, Sec. 4.3 and 4.4."""
    layout = nvmma_shared_to_linear_layout((128, 128), NVMMAShared(64, 16, transposed=True))
    derived = derive_operand(layout, 16, (64, 16), arch=100)
    assert derived.major == "MN"
    assert (derived.descriptor.stride_byte_offset, derived.descriptor.leading_byte_offset) == (
        512, 8192,
    )  # fmt: skip
    assert derived.advances == (
        (0, 1024, 2048, 3072, 4096, 5120, 6144, 7168),
        (16384, 17408, 18432, 19456, 20480, 21504, 22528, 23552),
    )


def core_matrices(rows, columns, bits):
    """A K-major tile without swizzle: 8x16B core matrices, stacked along M first (seed 004)."""
    chunk = 128 // bits
    return (
        LinearLayout.identity_1d(chunk, "offset", "dim1")
        * LinearLayout.identity_1d(rows, "offset", "dim0")
        * LinearLayout.identity_1d(columns // chunk, "offset", "dim1")
    ).transpose_outs(["dim0", "dim1"])


def test_seed_004_without_swizzle():
    """Seed 004: the 64x64 bf16 tile of kernel 2 has LBO 1024 and SBO 128."""
    derived = derive_operand(core_matrices(64, 64, 16), 16, (64, 16), arch=100)
    assert derived.descriptor.swizzle_byte_width == 0
    assert derived.descriptor.leading_byte_offset == 1024
    assert derived.descriptor.stride_byte_offset == 128


def reads_every_element(derived, layout, base_address=0):
    """The hardware's addresses, from the descriptors, are the layout's own."""
    inverse = layout.pseudoinvert()
    element_bytes = derived.element_bitwidth // 8
    mn, k = derived.instruction
    for i, row in enumerate(derived.descriptors()):
        for j, descriptor in enumerate(row):
            for a, b in itertools.product(range(0, mn, 3), range(0, k, 3)):
                where = inverse.apply(dim0=i * mn + a, dim1=j * k + b)["offset"]
                found = descriptor.element_address(a, b, derived.element_bitwidth, derived.major)
                if found != base_address + where * element_bytes:
                    return False
    return True


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("major", MAJORS)
def test_hardware_reads_what_the_layout_says(arch, swizzle, bits, major):
    """Every third element of every subtile; and CuTe's road gives the same descriptor."""
    tile = (128, 128)
    encoding = NVMMAShared(swizzle, bits, transposed=major == "MN")
    layout = nvmma_shared_to_linear_layout(tile, encoding)
    instruction = (128 if bits == 8 else 64, 256 // bits)  # at least one atom along M
    if major == "MN" and (bits == 32 or (arch == 90 and bits != 16)):
        with pytest.raises(LayoutError, match="alone"):
            derive_operand(layout, bits, instruction, arch=arch)
        return
    derived = derive_operand(layout, bits, instruction, arch=arch)
    assert (derived.major, derived.descriptor.swizzle_byte_width) == (major, swizzle)
    assert reads_every_element(derived, layout)
    steps = derive_steps(SwizzleAtom(major, swizzle, bits), tile, instruction)
    assert derived.advances == tuple(map(tuple, steps.subtile_byte_offsets()))
    if derived.uses_leading:
        assert derived.descriptor.leading_byte_offset == steps.leading_byte_offset
    if derived.uses_stride:
        assert derived.descriptor.stride_byte_offset == steps.stride_byte_offset


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_core_matrices_without_swizzle_are_read(bits):
    layout = core_matrices(128, 512 // bits, bits)
    derived = derive_operand(layout, bits, (64, 256 // bits), arch=100)
    assert derived.descriptor.swizzle_byte_width == 0
    assert reads_every_element(derived, layout)


def test_mn_major_core_matrices_without_swizzle():
    """MN-major, no swizzle: SBO is along M, LBO along K (seed 001, first row of the table)."""
    layout = core_matrices(64, 128, 16)
    transposed = LinearLayout(
        {"offset": [(b, a) for a, b in layout.bases["offset"]]}, {"dim0": 128, "dim1": 64}
    )
    derived = derive_operand(transposed, 16, (64, 16), arch=100)
    assert (derived.major, derived.descriptor.swizzle_byte_width) == ("MN", 0)
    assert derived.descriptor.stride_byte_offset == 64 * 16
    assert derived.descriptor.leading_byte_offset == 128
    assert reads_every_element(derived, transposed)


@settings(max_examples=300)
@given(st.data())
def test_one_wrong_bit_is_another_descriptor_or_none(data):
    """A layout with one bit of one basis flipped is refused, or read as it now is."""
    major = data.draw(st.sampled_from(MAJORS))
    encoding = NVMMAShared(data.draw(st.sampled_from([32, 64, 128])), 16, major == "MN")
    layout = nvmma_shared_to_linear_layout((128, 64), encoding)
    bases = [list(basis) for basis in layout.bases["offset"]]
    dim = data.draw(st.integers(0, 1))
    bit = 1 << data.draw(st.integers(0, (128, 64)[dim].bit_length() - 2))
    bases[data.draw(st.integers(0, len(bases) - 1))][dim] ^= bit
    try:
        wrong = LinearLayout({"offset": bases}, layout.out_dims)
        derived = derive_operand(wrong, 16, (64, 16), arch=100)
    except LayoutError:
        return
    assert reads_every_element(derived, wrong)


def test_a_row_by_row_tile_has_no_descriptor():
    """What Triton 3.9 compiles to garbage: 16 fp16 columns, stored row by row."""
    layout = nvmma_shared_to_linear_layout((128, 16), NVMMAShared(0, 16))
    with pytest.raises(LayoutError) as caught:
        derive_operand(layout, 16, (64, 16), arch=90)
    assert "no matrix descriptor exists" in str(caught.value.rule)
    assert "no swizzle, K-major" in caught.value.rule


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"element_bitwidth": 64}, "element_bitwidth"),
        ({"instruction": (256, 16)}, "instruction"),
        ({"instruction": (64, 24)}, "instruction"),
        ({"instruction": "64x16"}, "instruction"),
        ({"mn_dim": 2}, "mn_dim"),
        ({"arch": 80}, "arch"),
        ({"layout": LinearLayout.identity_1d(8, "offset", "dim0")}, "layout"),
        ({"base_address": 512}, "layout"),
        ({"base_address": (1 << 18) - 8192}, "base_address"),
    ],
)
def test_illegal_derivations(arguments, argument):
    layout = nvmma_shared_to_linear_layout((128, 64), NVMMAShared(128, 16))
    legal = {"layout": layout, "element_bitwidth": 16, "instruction": (64, 16), "arch": 100}
    with pytest.raises(LayoutError) as caught:
        derive_operand(**{**legal, **arguments})
    assert caught.value.argument == argument


# -------------------------------------------------------------- instruction descriptors


@st.composite
def instruction_descriptors(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    found = KINDS[kind]
    scaled, mxf4 = found.block_scaled, kind.startswith("mxf4")
    m = draw(st.sampled_from((128, 256) if scaled else (64, 128, 256)))
    sparse = draw(st.booleans())
    majors = st.just("K") if mxf4 else st.sampled_from(MAJORS)
    negate = st.just(False) if kind == "i8" else st.booleans()
    selectors = st.integers(0, 3) if sparse and kind in ("f16", "tf32") else st.just(0)
    scale_ids = st.sampled_from(((0, 2) if mxf4 else range(4)) if scaled else (0,))
    return InstructionDescriptor(
        kind, m, 8 * draw(st.integers(1, 32)),
        *[draw(st.sampled_from(sorted(found.operands))) for _ in range(2)],
        draw(st.sampled_from(sorted(found.accumulators) or ["f32"])),
        draw(majors), draw(majors), draw(negate), draw(negate),
        kind == "i8" and draw(st.booleans()), sparse, draw(selectors),
        0 if scaled else draw(st.sampled_from((0, 8, 16, 32))),
        draw(st.sampled_from(sorted(found.scales))) if scaled else "",
        draw(scale_ids), draw(scale_ids),
        draw(st.sampled_from(list(found.k)[: 1 if sparse else None])),
    )  # fmt: skip


@given(instruction_descriptors())
def test_instruction_descriptors_round_trip(descriptor):
    assert InstructionDescriptor.decode(descriptor.encode(), descriptor.kind) == descriptor


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)))
def test_any_instruction_descriptor_decodes_or_raises_layout_error(value, kind):
    try:
        decoded = InstructionDescriptor.decode(value, kind)
    except LayoutError:
        return
    assert decoded.encode() == value


@pytest.mark.parametrize(
    ("kind", "options", "argument"),
    [
        ("mxf4", {"scale_factor_a_id": 1}, "scale_factor_a_id"),
        ("mxf4nvf4", {"scale_factor_b_id": 3}, "scale_factor_b_id"),
        ("mxf4", {"k": 96, "sparse": True}, "k"),
        ("f8f6f4", {"sparse": True, "sparsity_selector": 1}, "sparsity_selector"),
        ("f16", {"sparsity_selector": 1}, "sparsity_selector"),
        ("i8", {"negate_a": True}, "negate_a"),
    ],
)
def test_what_a_kind_does_not_have(kind, options, argument):
    """PTX ISA, "Instruction descriptor" and "Sparsity selector"."""
    found = KINDS[kind]
    types = [next(iter(found.operands))] * 2 + [next(iter(found.accumulators), "f32")]
    scale_type = next(iter(found.scales), "")
    InstructionDescriptor(kind, 128, 64, *types, scale_type=scale_type)
    with pytest.raises(LayoutError) as caught:
        InstructionDescriptor(kind, 128, 64, *types, scale_type=scale_type, **options)
    assert caught.value.argument == argument


def test_sparse_products_and_block_scaled_ones():
    """PTX ISA, "Instruction descriptor": bits 0 and 1 are reserved with scales, and mxf4 can be
    negated; a sparse K is twice the dense one.
    """
    own = InstructionDescriptor("mxf4", 128, 64, "e2m1", "e2m1", scale_type="ue8m0", negate_a=True)
    assert own.encode() == 0x8900480 | 1 << 13
    with pytest.raises(LayoutError, match="the reserved bits 0 are set"):
        InstructionDescriptor.decode(own.encode() | 1, "mxf4")
    sparse = InstructionDescriptor("tf32", 128, 64, "tf32", "tf32", sparse=True)
    assert sparse.describe()[0] == "kind tf32: D[128x64] f32 = A[128x16] tf32 x B[16x64] tf32"
    assert "A is 1:2 sparse, selector 0" in sparse.describe()


def test_a_known_instruction_descriptor():
    """What Triton emits for D[128x64] f32 = A f16 x B f16, both MN-major."""
    decoded = InstructionDescriptor.decode(0x8118010, "f16")
    assert decoded == InstructionDescriptor("f16", 128, 64, "f16", "f16", "f32", "MN", "MN")
    decoded.check_shape(1)
    with pytest.raises(LayoutError, match="n = 24: must be one of"):
        InstructionDescriptor("f16", 128, 24, "f16", "f16").check_shape(1)


def test_legal_shapes():
    assert list(legal_n("f16", 64, 1))[:3] == [8, 16, 24]
    assert list(legal_n("tf32", 256, 2))[:2] == [16, 32]
    assert list(legal_n("i8", 64, 1))[:6] == [8, 16, 24, 32, 48, 64]
    for arguments in (("f16", 256, 1), ("f16", 64, 2), ("f16", 128, 3), ("f64", 128, 1)):
        with pytest.raises(LayoutError):
            legal_n(*arguments)


# ------------------------------------------------------------- against the real compiler


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", ARCHES)
def test_tritons_descriptors_are_the_derived_ones(arch, site):
    """Every MMA of every configuration: both descriptors, and tcgen05's instruction descriptor. (Of
    operands in units, the descriptors are not Triton's.)
    """
    found = [
        (fields, result)
        for fields, result in compiled_configurations(arch, site)
        if fields["element_type"] in ELEMENT_TYPES
        and not any(fields.get(name) for name in ("swap_ab", "cta_group", "cluster_launch_control"))
        and "needs Triton" not in result.get("error", "")
        and not any(kernel_spec(**fields).layouts.boxes)
    ]
    checked = 0
    for fields, result in found:
        config = kernel_spec(**fields)
        kernel = parse_ptx(result["ptx"]).kernels[0]
        folder = Folder(kernel)
        for instruction in kernel.instructions:
            if not instruction.opcode.startswith(("wgmma.mma_async", "tcgen05.mma")):
                continue
            m = 64 if arch == 90 else 128
            for tile, operand, mn, mn_dim in (
                (config.layouts.a, instruction.operands[1], m, 0),
                (config.layouts.b, instruction.operands[2], config.tile.block_n, 1),
            ):
                derived = derive_operand(
                    tile.linear.to_linear_layout(), 16, (mn, 16), arch=arch, mn_dim=mn_dim
                )
                bits = folder.operand(operand, 64, instruction)
                assert bits.field(16, 48) is not None, f"{fields}: {instruction}"
                value = bits.value & ~0xFFFF | (bits.field(0, 14) or 0)
                decoded = SmemDescriptor.decode(value, arch)
                assert derived.matches(decoded), f"{fields}: {decoded} {derived.descriptor}"
                advances = [advance for row in derived.advances for advance in row]
                if bits.is_constant(64):
                    tile_bytes = 2 * derived.tile[0] * derived.tile[1]
                    assert decoded.start_address % tile_bytes % 1024 in {a % 1024 for a in advances}
                checked += 1
            if arch == 100:
                idesc = folder.operand(instruction.operands[3], 32, instruction)
                assert idesc.is_constant(32)
                expected = InstructionDescriptor(
                    "f16", 128, config.tile.block_n,
                    *[{"fp16": "f16", "bf16": "bf16"}[config.product.element_type]] * 2,
                    "f32", config.product.a_major, config.product.b_major,
                )  # fmt: skip
                assert InstructionDescriptor.decode(idesc.value, "f16") == expected
    assert checked >= (100 if ALL or site is None else 75)  # of others, a part is compiled


# ------------------------------------------------------------------------- the command


def run(*arguments):
    return CliRunner().invoke(descriptor_command, arguments)


def test_descriptor_command():
    text = run("0x4000404000010000").output
    assert "stride dimension byte offset (SBO) 1024 (64 x 16 bytes)" in text
    signed = run("--arch", "sm_90", "--", "-9223371899415822336").output  # as PTX prints it
    assert "64-byte swizzle" in signed
    derived = run("--swizzle", "128", "--bits", "16", "--shape", "128x128", "--explain").output
    assert "descriptor 0x4000404000010000" in derived
    assert "   8192   8224   8256   8288  24576  24608  24640  24672\n" in derived
    assert "(LBO) 16 (1 x 16 bytes) (not read)" in derived
    assert "LBO = 16 bytes (not read), SBO = 1024 bytes" in derived
    wrong = run("0x0")
    assert wrong.exit_code == 1
    assert "version = 0x0" in wrong.output
