"""The descriptors in compiled wgmma and tcgen05.mma instructions are those that are derived.

Each configuration is one product of two tiles in shared memory, compiled to PTX by a release of
Triton (`mma_worker.py`), and derived here from the layouts of the tiles alone. Compared are every
field of every matrix descriptor that the hardware uses, the start addresses, wgmma's immediates
and tcgen05's instruction descriptors.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from corpus_cache import kept, sources
from mma_products import (
    BITS,
    KINDS,
    MAJORS,
    TARGETS,
    TYPES,
    WARPGROUP,
    WARPS,
    Operand,
    Product,
    hardware_majors,
    products,
)
from sites import ALL, SUPPORT, triton_sites

from triton_ext import LayoutError, LinearLayout, NVMMAShared
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.encodings import CHUNK_BYTES, SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.nvmma_shared import ATOM_ROWS, nvmma_shared_to_linear_layout
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import parse_ptx

# --------------------------------------------------------------------------- comparison


def of_warpgroup(kernel, warpgroup):
    """The kernel as the first thread of a warpgroup sees it."""
    thread = str(WARPGROUP * warpgroup)
    instructions = tuple(
        replace(
            instruction,
            operands=tuple(thread if text == "%tid.x" else text for text in instruction.operands),
        )
        for instruction in kernel.instructions
    )
    return replace(kernel, instructions=instructions)


def mma_instructions(ptx):
    """The kernel, and its MMA instructions in the order of the text."""
    (kernel,) = parse_ptx(ptx).kernels
    opcodes = ("wgmma.mma_async", "tcgen05.mma")
    return kernel, [item for item in kernel.instructions if item.opcode.startswith(opcodes)]


def first_subtiles(product, instructions):
    """Accumulator operand -> the subtile (m, n) that the first warpgroup takes with it."""
    counts = product.a.subtiles[0], product.b.subtiles[0]
    if product.arch == 90:  # registers, in order: N first
        order = itertools.product(
            *(range(0, count, step) for count, step in zip(counts, product.warpgroups, strict=True))
        )
        operands = dict.fromkeys(instruction.operands[0] for instruction in instructions)
        return dict(zip(operands, order, strict=True))
    m, n = product.instruction
    bits = BITS[product.d_type]
    cga = [(1, 0)] * (product.cta_group - 1)
    encoding = TensorMemoryEncoding(m, n, 32 // bits, cga, product.cta_group == 2)
    elements = encoding.to_linear_layout(product.shape[:2], bits).pseudoinvert()
    addresses = {}
    for i, j in itertools.product(*map(range, counts)):
        where = elements.apply(dim0=i * m, dim1=j * n)
        addresses[where["lane"] << 16 | where["column"]] = (i, j)
    return {
        text: addresses[int(re.fullmatch(r"\[\s*%r\d+\s*\+\s*(\d+)\s*\]", text)[1])]
        for text in {instruction.operands[0] for instruction in instructions}
    }


def expected_opcode(product):
    a, b = product.a, product.b
    if product.arch == 90:
        m, n = product.instruction
        types = f"{product.d_type}.{a.element_type}.{b.element_type}"
        return f"wgmma.mma_async.sync.aligned.m{m}n{n}k{a.instruction_k}.{types}"
    return f"tcgen05.mma.cta_group::{product.cta_group}.kind::{KINDS[a.element_type]}"


def expected_immediates(product):
    """wgmma's, after D, A, B and scale-d: the signs of A and B; whether they are MN-major."""
    signs = [] if product.d_type == "s32" else ["1", "1"]
    majors = [str(int(operand.major == "MN")) for operand in (product.a, product.b)]
    return signs + majors if product.a.bits == 16 else signs


def expected_instruction_descriptor(product):
    m, n = product.instruction
    a, b = product.a, product.b
    return InstructionDescriptor(
        KINDS[a.element_type], m * product.cta_group, n, a.element_type, b.element_type,
        product.d_type, a.major, b.major,
    )  # fmt: skip


def differences(product, result):
    """Where Triton's PTX and the derivation differ, in words; empty if nowhere."""
    kernel, instructions = mma_instructions(result["ptx"])
    subtiles = first_subtiles(product, instructions)
    found = []
    seen = Counter()
    bases = {"A": set(), "B": set()}
    along_m, along_n = product.warpgroups
    for group_n, group_m in itertools.product(range(along_n), range(along_m)):
        folder = Folder(of_warpgroup(kernel, group_n * along_m + group_m))
        steps = Counter()
        for instruction in instructions:
            d, *descriptors = instruction.operands[:3]
            m, n = subtiles[d][0] + group_m, subtiles[d][1] + group_n
            k = steps[d]
            steps[d] += 1
            seen[m, n, k] += 1
            for name, operand, i, text in (
                ("A", product.a, m, descriptors[0]),
                ("B", product.b, n, descriptors[1]),
            ):
                bits = folder.operand(text, 64, instruction)
                if not bits.is_constant(64):
                    found.append(f"{name}: {bits} is no constant")
                    continue
                descriptor = SmemDescriptor.decode(bits.value, product.arch)
                if not operand.derived.matches(descriptor):
                    found.append(f"{name}: {descriptor} is not {operand.derived.descriptor}")
                bases[name].add(descriptor.start_address - operand.derived.advances[i][k])
            found += differing_instruction(product, instruction, folder)
    counts = product.a.subtiles[0], product.b.subtiles[0], product.a.subtiles[1]
    if seen != Counter(itertools.product(*map(range, counts))):
        found.append(f"the subtiles are {dict(seen)}")
    return [*found, *differing_bases(product, bases, result["shared"])]


def differing_instruction(product, instruction, folder):
    opcode = expected_opcode(product)
    if product.arch == 90:
        immediates = list(instruction.operands[4:])
        if (instruction.opcode, immediates) != (opcode, expected_immediates(product)):
            yield f"{instruction.opcode} {immediates}"
        return
    rest = instruction.opcode.removeprefix(opcode)
    if not re.fullmatch(r"(\.collector::a::\w+)?", rest):
        yield f"{instruction.opcode} is not {opcode}"
    expected = expected_instruction_descriptor(product)
    bits = folder.operand(instruction.operands[3], 32, instruction)
    if not bits.is_constant(32) or bits.value != expected.encode():
        yield f"instruction descriptor {bits} is not {expected}"


def differing_bases(product, bases, shared):
    """Each operand starts at one address, and both together fill the kernel's shared memory."""
    if any(len(starts) != 1 for starts in bases.values()):
        yield f"start addresses less advances are {bases}"
        return
    (first, end), (second, last) = sorted(
        (start, start + operand.bytes)
        for (start,), operand in zip(bases.values(), (product.a, product.b), strict=True)
    )
    if first or not 0 <= second - end < ATOM_ROWS * max(SWIZZLE_BYTE_WIDTHS) or last != shared:
        yield f"tiles at {first}:{end} and {second}:{last} of {shared} bytes"


# --------------------------------------------------------------------------------- tests


def refuses(version, product):
    """What of `products` a release does not compile: Triton 3.7 has no tcgen05.mma of integers."""
    return version == (3, 7) and product.arch == 100 and product.a.element_type == "s8"


@functools.cache
def asked(site, arch, cta_group):
    """The products for a release: by `make oracle` all, else a quarter, by the sum of the numbers
    of the two swizzles, so that each operand has each swizzle and major-ness.
    """
    found = products(arch, cta_group)
    if ALL:
        return found
    number, rest = SWIZZLE_BYTE_WIDTHS.index, 1 if site is None else 2
    return [each for each in found if (number(each.a.swizzle) + number(each.b.swizzle)) % 4 == rest]


@functools.cache
def compared(site, arch, cta_group):
    """The release, and the products that it compiles, each found to be as derived."""
    version, results = compiled(site)
    found = []
    for product in asked(site, arch, cta_group):
        result = results[product]
        assert ("error" in result) == refuses(version, product), f"{product}: {result}"
        if "error" not in result:
            assert differences(product, result) == [], product
            found.append(product)
    return version, found


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize(("arch", "cta_group"), TARGETS)
def test_compiled_descriptors_are_the_derived_ones(arch, cta_group, site):
    """Every MMA of every product; how many products there are of each class of operand."""
    version, found = compared(site, arch, cta_group)
    classes = Counter(
        (name, operand.bits, operand.major, operand.swizzle)
        for product in found
        for name, operand in (("A", product.a), ("B", product.b))
    )
    for bits in TYPES:
        majors = hardware_majors(arch, bits)
        for key in itertools.product("AB", [bits], majors, SWIZZLE_BYTE_WIDTHS):
            least = len(majors) * len(SWIZZLE_BYTE_WIDTHS)
            if version == (3, 7) and (arch, bits) == (100, 8):
                least = 3
            if not ALL:
                least = -(-least // 4)
            assert classes[key] >= least, key
    operands = [operand for product in found for operand in (product.a, product.b)]
    integers = set() if version == (3, 7) and arch == 100 else {"s8"}
    types = {"f16", "bf16", "tf32", "e4m3", "e5m2"} | integers
    assert {operand.element_type for operand in operands} == types
    assert {operand.as_nvmma for operand in operands} == {False, True}
    assert {operand.atoms for operand in operands} == {"strided", "contiguous"}
    assert {product.a.subtiles[1] for product in found} == {1, 2, 4, 8}
    assert {product.a.subtiles[0] for product in found} == {1, 2}
    assert {product.b.subtiles[0] for product in found} == ({1, 2} if cta_group == 1 else {1})
    assert {product.a.instruction for product in found} == ({64} if arch == 90 else {64, 128})
    n = {8, 16, 32, 64, 128, 256} - ({8} if cta_group == 2 else set())
    assert {product.instruction[1] for product in found} == n
    assert {product.warps for product in found} == set(WARPS[arch])


@pytest.mark.parametrize("site", triton_sites())
def test_how_many_configurations(site):
    found = set()
    for target in TARGETS:
        version, some = compared(site, *target)
        found.update(some)
    whole = {(3, 7): 342}.get(version, 384)
    assert len(found) == whole if ALL else len(found) >= 0.2 * whole


@pytest.mark.parametrize("target", TARGETS)
def test_differences_are_seen(target):
    """The same PTX, compared with what was not compiled: A in another order of atoms, with
    another swizzle, or the other way round."""
    pytest.importorskip("triton")
    _, results = compiled(None)
    changed = Counter()
    for product in asked(None, *target):
        a, result = product.a, results[product]
        atoms, major = {"strided", "contiguous"} - {a.atoms}, {*MAJORS} - {a.major}
        for other in (
            replace(a, as_nvmma=False, atoms=atoms.pop()),
            replace(a, swizzle=64 if a.swizzle == 32 else 32),
            replace(a, major=major.pop()),
        ):
            try:
                if other.derived == a.derived:
                    continue
            except LayoutError:  # that tile is too small for an atom, or cannot be read
                continue
            assert differences(replace(product, a=other), result)
            changed[other.atoms != a.atoms, other.swizzle != a.swizzle, other.major != a.major] += 1
    assert all(changed[key] >= 10 for key in itertools.permutations([True, False, False])), changed


# --------------------------------------------------------- layouts of no canonical form


@functools.cache
def odd_products(count=160):
    """Products of one CTA with an operand whose atoms lie oddly: bases above an atom's exchanged,
    added up, shuffled, or with a bit flipped."""
    draw = random.Random(0)
    pool = [product for arch in (90, 100) for product in products(arch, 1)]
    found = []
    while len(found) < count:
        product, side = draw.choice(pool), draw.choice("ab")
        operand = getattr(product, side)
        linear = operand.linear
        bases = [list(basis) for basis in linear.bases["offset"]]
        atom = 8 * max(CHUNK_BYTES, operand.swizzle) // operand.bits * ATOM_ROWS
        outside = range(atom.bit_length() - 1, len(bases))
        if len(outside) < 2:
            continue
        i, j = draw.sample(outside, 2)
        change = draw.choice(["exchange", "shuffle", "add", "add", "flip", "flip"])
        if change == "exchange":
            bases[i], bases[j] = bases[j], bases[i]
        elif change == "add":
            bases[i] = [a ^ b for a, b in zip(bases[i], bases[j], strict=True)]
        elif change == "shuffle":
            rest = bases[outside.start :]
            draw.shuffle(rest)
            bases[outside.start :] = rest
        else:
            dim = draw.randrange(2)
            top = list(linear.out_dims.values())[dim].bit_length() - 1
            bases[i][dim] ^= 1 << draw.randrange(min(3, top - 1), top)
        odd = LinearLayout({"offset": [tuple(basis) for basis in bases]}, linear.out_dims)
        if odd.is_surjective() and odd != linear:
            other = replace(operand, as_nvmma=False, bases=tuple(odd.bases["offset"]))
            found.append((replace(product, **{side: other}), other))
    return found


def adds_up(product):
    """Whether each warpgroup's start addresses are the first one's, and a constant for each."""
    return all(
        advance == row[k] + (operand.derived.advances[group][0] if group else 0)
        for operand, groups in zip((product.a, product.b), product.warpgroups, strict=True)
        for i in range(operand.subtiles[0])
        for group, row in [(i % groups, operand.derived.advances[i - i % groups])]
        for k, advance in enumerate(operand.derived.advances[i])
    )


def enters_an_atom(operand):
    """Whether a step of one or more atoms also leads to elsewhere within an atom."""
    height, width = ATOM_ROWS, 8 * max(CHUNK_BYTES, operand.swizzle) // operand.bits
    advances = operand.derived.advances
    steps = zip(
        ([row[0] for row in advances], advances[0]),
        (operand.instruction, operand.instruction_k),
        (height, width) if operand.major == "K" else (width, height),
        strict=True,
    )
    return any(
        along[1 << bit] % (height * max(CHUNK_BYTES, operand.swizzle))
        for along, extent, atom in steps
        for bit in range(len(along).bit_length() - 1)
        if extent << bit >= atom
    )


def reason_against(operand):
    """Where the layout of the operand leaves the form that it is closest to, or ""."""
    try:
        assert operand.derived
    except LayoutError as error:
        return error.rule.partition(", where ")[2]
    return ""


@pytest.mark.parametrize("site", triton_sites())
def test_odd_layouts(site):
    """What has a descriptor, Triton compiles with that one, or refuses; what has none, it refuses.

    With three exceptions:

    - Triton takes strides between atoms that share a bit: the layout XORs them, the hardware adds
      them. (3.7 also takes strides that share bits with an atom.)
    - It adds a warpgroup's offset to that of the subtile, where they share a bit.
    - It refuses steps from instruction to instruction that also lead elsewhere within an atom.

    On an H100, 19 such kernels of the first kind and 3 of the second (Triton 3.9) gave wrong
    products or died; where Triton and the derivation agree, see `test_products_on_a_gpu`.
    """
    version, results = compiled(site)
    seen = Counter()
    for product, operand in odd_products():
        result = results[product]
        reason = reason_against(operand)
        if "error" in result and reason:
            seen["no descriptor"] += 1
        elif "error" in result:
            assert refuses(version, product) or enters_an_atom(operand)
            seen["refused"] += 1
        elif reason:
            assert reason == "two bits of the coordinates land on one bit of the address"
            seen["shared bits"] += 1
        else:
            same = differences(product, result) == []
            assert same == adds_up(product)
            seen["same" if same else "warpgroups"] += 1
    assert seen["no descriptor"] >= 100
    assert seen["same"] >= 20
    assert min(seen["refused"], seen["shared bits"], seen["warpgroups"]) >= 1


# ------------------------------------------------------------------------------ on a GPU


@pytest.mark.sm90
def test_products_on_a_gpu():
    """What is compiled with the derived descriptors is right: small integers, so without error.

    Triton sets a base offset in some descriptors without a swizzle: the hardware ignores it.
    """
    torch = pytest.importorskip("torch")
    worker = pytest.importorskip("mma_worker")
    types = {
        "f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32,
        "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8,
        "s32": torch.int32,
    }  # fmt: skip
    _, results = compiled(None)
    odd = [
        product
        for product, operand in odd_products()
        if product.arch == 90 and "ptx" in results[product]
        if not reason_against(operand) and adds_up(product)
    ]
    assert len(odd) >= 5
    generator = torch.Generator().manual_seed(0)
    for product in [*products(90, 1), *odd]:
        m, n, k = product.shape
        a, b = (torch.randint(-2, 3, shape, generator=generator) for shape in ((m, k), (k, n)))
        d = torch.full((m, n), 77, dtype=types[product.d_type], device="cuda")
        operands = (
            matrix.float().to(types[operand.element_type]).cuda()
            for matrix, operand in ((a, product.a), (b, product.b))
        )
        worker.multiply(product.job(), *operands, d)
        assert torch.equal(d.double().cpu(), a.double() @ b.double()), product


# ------------------------------------------------------------------ refusals and faults


def product_of(arch, element_type, majors, swizzles, instruction, k, cta_group=1, repeats=1):
    """One instruction along M, `repeats` along N; `instruction` is (M, N) in one CTA."""
    n = instruction[1] // cta_group
    return Product(
        Operand(
            arch, cta_group, element_type, 0, (instruction[0], k), instruction[0], majors[0],
            swizzles[0],
        ),
        Operand(arch, cta_group, element_type, 1, (n * repeats, k), n, majors[1], swizzles[1]),
        "s32" if KINDS[element_type] == "i8" else "f32",
    )  # fmt: skip


def with_nvmma_a(product, encoding):
    """A is laid out by an NVMMA encoding that `operand_layout` does not have."""
    a = product.a
    linear = nvmma_shared_to_linear_layout(a.shape, encoding)
    return replace(product, a=replace(a, as_nvmma=True, bases=tuple(linear.bases["offset"])))


def with_32_byte_atomicity():
    """tf32, MN-major: 128-byte rows along M, of which 4 make an atom (Swizzle<2, 5, 2>)."""
    bases = [(1 << i, 0) for i in range(5)] + [(8, 1), (16, 2), (0, 4), (32, 0), (64, 0)]
    product = product_of(100, "tf32", ("MN", "K"), (128, 128), (128, 64), 32)
    bases += [(0, 8), (0, 16)]
    return replace(product, a=replace(product.a, bases=tuple(bases)))


K_MAJOR = ("K", "K")
# what -> (product, whether A and B have descriptors)
REFUSED = {
    **{
        f"MN-major {element_type} with wgmma, {'A' if majors[0] == 'MN' else 'B'}": (
            product_of(90, element_type, majors, (64, 64), (64, 128), 1024 // BITS[element_type]),
            (majors[0] == "K", majors[1] == "K"),
        )
        for element_type in ("e4m3", "s8", "tf32")
        for majors in (("MN", "K"), ("K", "MN"))
    },
    **{
        f"MN-major tf32 with tcgen05, swizzle {swizzle}": (
            product_of(100, "tf32", ("MN", "K"), (swizzle, 128), (128, 64), 32),
            (False, True),
        )
        for swizzle in SWIZZLE_BYTE_WIDTHS
    },
    "MN-major tf32 with tcgen05, 32-byte atomicity": (with_32_byte_atomicity(), (True, True)),
    "s8 with wgmma, N = 256": (
        product_of(90, "s8", K_MAJOR, (128, 128), (64, 256), 128),
        (True, True),
    ),
    "cta_group 2, two instructions along N": (
        product_of(100, "f16", K_MAJOR, (128, 128), (128, 128), 64, cta_group=2, repeats=2),
        (True, True),
    ),
    "rows of 64 elements without swizzle": (
        with_nvmma_a(product_of(100, "f16", K_MAJOR, (0, 128), (128, 64), 64), NVMMAShared(0, 16)),
        (False, True),
    ),
}


def has_descriptor(operand):
    try:
        return bool(operand.derived)
    except LayoutError:
        return False


@pytest.mark.parametrize("site", triton_sites())
def test_what_triton_refuses(site):
    """Operands that no instruction reads; and four cases in which the hardware could do more."""
    _, results = compiled(site)
    for name, (product, expected) in REFUSED.items():
        assert "error" in results[product], name
        assert (has_descriptor(product.a), has_descriptor(product.b)) == expected, name


def first_descriptors(product, result):
    kernel, instructions = mma_instructions(result["ptx"])
    folder = Folder(kernel)
    return [
        SmemDescriptor.decode(folder.operand(text, 64, instructions[0]).value, product.arch)
        for text in instructions[0].operands[1:3]
    ]


ROW_BY_ROW = [
    with_nvmma_a(product_of(arch, "f16", K_MAJOR, (0, 32), (64, 64), 16), NVMMAShared(0, 16))
    for arch in (90, 100)
]
CUT_CHUNKS = [
    product_of(100, "e4m3", ("K", "MN"), (128, swizzle), (64, 8), 128, repeats=repeats)
    for swizzle, repeats in ((0, 2), (32, 4))
]
ILLEGAL_SHAPE = product_of(100, "f16", K_MAJOR, (128, 128), (128, 8), 64)
UNSIGNED = [product_of(arch, "u8", K_MAJOR, (128, 128), (64, 64), 128) for arch in (90, 100)]


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("product", ROW_BY_ROW, ids=["sm_90", "sm_100"])
def test_rows_without_swizzle_are_taken_for_swizzled_ones(product, site):
    """16 columns of 16 bits, row by row: Triton 3.8 and 3.9 emit the descriptor of the 32-byte
    swizzle, which the tile does not have (its products are garbage, `test_matmul_gpu`); 3.7
    refuses."""
    version, results = compiled(site)
    assert not has_descriptor(product.a)
    if version == (3, 7):
        assert "error" in results[product]
        return
    kernel, instructions = mma_instructions(results[product]["ptx"])
    bits = Folder(kernel).operand(instructions[0].operands[1], 64, instructions[0])
    swizzled = replace(product.a, as_nvmma=False, bases=(), swizzle=32)
    assert swizzled.derived.matches(SmemDescriptor.decode(bits.value, product.arch))


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("product", CUT_CHUNKS, ids=["swizzle 0", "swizzle 32"])
def test_a_chunk_cut_in_two(product, site):
    """MN-major 8-bit columns for instructions of N = 8: every other subtile starts 8 bytes into a
    16-byte chunk, which no descriptor can say. Triton drops the 8 bytes: two read the same."""
    _, results = compiled(site)
    assert not has_descriptor(product.b)
    kernel, instructions = mma_instructions(results[product]["ptx"])
    folder = Folder(kernel)
    subtiles = first_subtiles(product, instructions)
    starts = {}
    for instruction in instructions:
        bits = folder.operand(instruction.operands[2], 64, instruction)
        start = SmemDescriptor.decode(bits.value, product.arch).start_address
        starts.setdefault(subtiles[instruction.operands[0]][1], start)
    exact = [8 * n for n in range(product.b.subtiles[0])]
    found = [starts[n] - starts[0] for n in range(product.b.subtiles[0])]
    assert found == [8 * n - 8 * n % CHUNK_BYTES for n in range(len(exact))] != exact


@pytest.mark.parametrize("site", triton_sites())
def test_an_illegal_shape_is_compiled(site):
    """tcgen05.mma has no N = 8 with M = 128 (PTX ISA, "Matrix Shape"); Triton emits it."""
    _, results = compiled(site)
    assert differences(ILLEGAL_SHAPE, results[ILLEGAL_SHAPE]) == []
    with pytest.raises(LayoutError, match="n = 8: must be one of 16"):
        expected_instruction_descriptor(ILLEGAL_SHAPE).check_shape(1)


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("product", UNSIGNED, ids=["sm_90", "sm_100"])
def test_unsigned_bytes_are_multiplied_as_signed(product, site):
    version, results = compiled(site)
    if (version, product.arch) == ((3, 7), 100):
        assert "error" in results[product]
        return
    assert differences(product, results[product])
    signed = (replace(operand, element_type="s8") for operand in (product.a, product.b))
    assert differences(Product(*signed, "s32"), results[product]) == []


def multiplied(jobs, site):
    """What the worker says of each job, after the version of Triton."""
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = str(site)
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "mma_worker.py")],
        input=json.dumps(jobs), capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads(line) for line in finished.stdout.splitlines()]


@functools.cache
def compiled(site):
    """The version of Triton at `site`, and what becomes of every product of this file."""
    wanted = [
        *itertools.chain.from_iterable(asked(site, *target) for target in TARGETS),
        *(product for product, _ in odd_products()),
        *(product for product, _ in REFUSED.values()),
        *ROW_BY_ROW, *CUT_CHUNKS, ILLEGAL_SHAPE, *UNSIGNED,
    ]  # fmt: skip
    wanted = list(dict.fromkeys(wanted))
    jobs = [product.job() for product in wanted]
    version, *results = kept(
        [sys.executable, str(site), jobs], lambda: (multiplied(jobs, site), sources(site))
    )
    return tuple(map(int, version.split(".")[:2])), dict(zip(wanted, results, strict=True))
