"""A descriptor held against its tile: the fields that a fault changes, and no others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from triton_ext.cli import main
from triton_ext.hardware.descriptor_check import check_against_tile, hints, other_architecture
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.smem_descriptor import FIELDS, SmemDescriptor, problems
from triton_ext.layouts.encodings import NVMMAShared

ATTRIBUTE = (
    "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
)


def operand(arch=100, width=128, transposed=False, instruction=(64, 16), shape=(128, 128)):
    layout = NVMMAShared(width, 16, transposed).to_linear_layout(shape)
    return derive_operand(layout, 16, instruction, arch=arch)


operands = st.builds(
    operand,
    arch=st.sampled_from([90, 100]),
    width=st.sampled_from([32, 64, 128]),
    transposed=st.booleans(),
    instruction=st.sampled_from([(64, 16), (128, 16), (8, 16)]),
)


@given(tile=operands, place=st.integers(0, 8), data=st.data())
def test_every_subtile_agrees_and_is_found(tile, place, data):
    start = 1024 * place
    i = data.draw(st.integers(0, len(tile.advances) - 1))
    j = data.draw(st.integers(0, len(tile.advances[0]) - 1))
    value = tile.descriptors(start)[i][j].encode()
    found = check_against_tile(value, tile, start)
    assert found.differences == ()
    assert found.expected.encode() == value
    assert found.subtile is not None
    assert tile.advances[found.subtile[0]][found.subtile[1]] == tile.advances[i][j]
    anywhere = check_against_tile(value, tile)
    assert anywhere.differences == ()


@given(tile=operands, data=st.data())
def test_a_field_that_differs_is_named_unless_it_is_not_read(tile, data):
    names = [name for name in FIELDS[tile.descriptor.arch] if name != "start_address"]
    name = data.draw(st.sampled_from(names))
    first, bits = FIELDS[tile.descriptor.arch][name]
    change = data.draw(st.integers(1, (1 << bits) - 1))
    found = check_against_tile(tile.descriptor.encode() ^ change << first, tile, 0)
    unread = tile.unread_fields | ({"lbo_mode"} if not tile.uses_leading else set())
    assert len(found.differences) == (name not in unread)


@given(tile=operands, address=st.integers(0, 1 << 13).map(lambda n: 16 * n))
def test_a_start_address_of_no_subtile_is_named(tile, address):
    value = replace(tile.descriptor, start_address=address).encode()
    found = check_against_tile(value, tile, 1024)
    advances = {1024 + advance for row in tile.advances for advance in row}
    assert (found.subtile is None) == (address not in advances)
    assert [each.field for each in found.differences] == (
        ["start address"] if found.subtile is None else []
    )


def test_hints_of_faults_that_are_seen():
    tile = operand(width=64)
    own = tile.descriptor

    def hint(**changed):
        [found] = check_against_tile(replace(own, **changed).encode(), tile).differences
        return found.hint

    assert "all groups of 8 rows" in hint(stride_byte_offset=0)
    assert hint(stride_byte_offset=16 * own.stride_byte_offset) == (
        "in bytes; the field counts 16 bytes"
    )
    # Code 2 is 64 bytes on sm_90, and 128 on sm_100.
    wrong = hint(swizzle_byte_width=128)
    assert wrong == "2 is sm_90's code of a swizzle of 64 bytes, which on sm_100 is 4"
    columns = operand(transposed=True, instruction=(128, 16))  # reads both
    leading, stride = columns.descriptor.leading_byte_offset, columns.descriptor.stride_byte_offset
    exchanged = replace(columns.descriptor, leading_byte_offset=stride, stride_byte_offset=leading)
    found = check_against_tile(exchanged.encode(), columns)
    assert [each.hint for each in found.differences] == 2 * ["LBO and SBO are exchanged"]


@pytest.mark.parametrize(
    ("value", "arch", "expected"),
    [
        (0x4000404000010000, 100, []),
        (0x4000400000010000, 100, ["SBO is 0"]),
        (0x2000404000010000, 100, ["1 is sm_90's code of a swizzle of 128 bytes"]),
        (0x6000404000010000, 100, ["3 is sm_90's code of a swizzle of 32 bytes"]),
        (0x4000402000010000, 100, ["SBO is 512: less than an atom"]),
        (0x4000404000010010, 100, ["in line 2 of the swizzle pattern"]),
        (0x0000400800000000, 100, ["LBO is 0"]),
        (0x4000004000010000, 100, ["a legal descriptor of sm_90"]),
        (0x4000404000010000, 90, ["a legal descriptor of sm_100"]),
        (0x4000004000010000, 90, []),
    ],
)
def test_hints_of_a_value_alone(value, arch, expected):
    found = hints(value, arch)
    problem_free = not problems(value, arch)
    assert len([one for one in found if problem_free or one not in expected]) >= len(expected)
    assert all(any(words in one for one in found) for words in expected)
    if problem_free:
        assert len(found) == len(expected)
    assert bool(other_architecture(value, arch)) == any("legal" in one for one in expected)


@given(operands)
def test_what_is_derived_is_not_suspicious(tile):
    read = SmemDescriptor.decode(tile.descriptor.encode(), tile.descriptor.arch)
    strides = not tile.uses_stride and not read.stride_byte_offset
    assert [one for one in hints(read.encode(), read.arch) if not strides or "SBO" not in one] == []


def run(*arguments):
    return CliRunner().invoke(main, ["descriptor", *arguments])


def test_command():
    tile = ("--swizzle", "128", "--dtype", "bf16", "--shape", "128x64")
    right = run("0x4000404000010002", *tile)
    assert right.exit_code == 0
    assert "start address: that of subtile (0, 1) (M or N, K)" in right.output
    assert "every field that is read agrees" in right.output
    assert "(LBO) 16 (1 x 16 bytes) (not read)" in right.output
    by_attribute = run("0x4000404000010002", ATTRIBUTE, "--bits", "16", "--shape", "128x64")
    assert by_attribute.output == right.output
    wrong = run("0x4000404000010000", "--swizzle", "64", "--bits", "16", "--shape", "128x64")
    assert wrong.exit_code == 1
    assert "SBO: 1024 bytes (64 x 16), and must be 512 bytes (32 x 16)" in wrong.stdout
    assert wrong.stderr == "triton-ext: the descriptor is not that of the tile: SBO, swizzle\n"
    report = json.loads(
        run("0x4000404000010000", *tile, "--start", "0x400", "--format", "json").stdout
    )
    assert report["expected"] == "0x4000404000010040"
    assert report["subtile"] is None
    assert [each["field"] for each in report["differences"]] == ["start address"]
    # B, as (K, N): its first dimension is K.
    rows = run("--bits", "16", "--shape", "64x64", "--operand", "b", "--major", "K").output
    assert "K-major operand" in rows
    assert rows == run("--bits", "16", "--shape", "64x64", "--operand", "b", "--transposed").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0x0", "--shape", "64x64"), "give the width of its elements"),
        (("0x0", "--bits", "16"), "give --shape"),
        (("0x0", "--bits", "16", "--shape", "64x64", "--format", "svg"), "--format svg draws"),
        (("0x0", "--explain"), "--explain cannot be used with a value"),
        (("0x0", "--kind", "f16", "--arch", "sm_100"), "--arch cannot be used with --kind"),
        (("0x0", "--kind", "f16", "--bits", "16"), "--bits cannot be used with --kind"),
        ((ATTRIBUTE, ATTRIBUTE, "--bits", "16"), "one layout has one descriptor"),
        (("0x0", ATTRIBUTE, "--swizzle", "64", "--bits", "16"), "--swizzle cannot be used with an"),
        (("--dtype", "bf16", "--bits", "8", "--shape", "64x64"), "bf16 has 16 bits, not 8"),
        (("--major", "K", "--transposed", "--bits", "16", "--shape", "64x64"), "is --major MN"),
        (
            ("--bits", "16", "#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>"),
            "is padded: no matrix descriptor",
        ),
    ],
)
def test_command_errors(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
