"""Machine code: operands of wgmma in registers that are overwritten before the wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from pass_corpus import environment
from sites import ROOT, triton_sites

from triton_ext.errors import LayoutError
from triton_ext.ptx.sass import SassInstruction, overwritten_operands, parse_sass

LOOP = """\
\t.section\t.text.multiply,"ax",@progbits
.text.multiply:
\t//## File "/home/kernel.py", line 7
        /*0000*/                   LDS.64 R4, [R30] ;
.L_x_0:
        /*0010*/                   LDS.64 R6, [R30+0x8] ;
        /*0020*/                   WARPGROUP.ARRIVE ;
\t//## File "/home/kernel.py", line 9
        /*0030*/                   HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0 ;
        /*0040*/                   {between} ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x{left} ;
        /*0060*/                   {behind} ;
        /*0070*/              @!P0 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
"""


def found(between="NOP", behind="NOP", left=0):
    text = LOOP.format(between=between, behind=behind, left=left)
    return [each.write.address for each in overwritten_operands(text)]


def test_a_write_before_the_wait():
    assert found() == []
    assert found(between="MOV R5, R9") == [0x40]
    assert found(between="@P1 IMAD.WIDE.U32 R2, R8, 0x4, R2") == []
    assert found(between="@P1 IMAD.WIDE.U32 R6, R8, 0x4, R2") == [0x40]
    assert found(between="MOV R8, R5") == []
    assert found(behind="MOV R5, R9") == []
    assert found(between="EXIT", behind="MOV R5, R9") == []


def test_a_wait_that_leaves_a_group_and_the_branch_back():
    assert sorted(found(left=1)) == [0x10]
    assert sorted(found(left=1, behind="MOV R5, R9")) == [0x10, 0x60]
    (first,) = overwritten_operands(LOOP.format(between="NOP", behind="NOP", left=1))
    assert first.registers == (6, 7)
    assert (first.product.file, first.product.line) == ("/home/kernel.py", 9)
    assert (first.write.line, first.function) == (7, "multiply")
    assert "R6, R7 of A of 0030: HGMMA" in str(first)


def test_groups_are_waited_for_in_their_order():
    listing = """
        /*0000*/                   HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24 ;
        /*0010*/                   HGMMA.64x8x16.F32.BF16 R24, R8, gdesc[UR4], R24, gsb0 ;
        /*0020*/                   HGMMA.64x8x16.F32.BF16 R24, R12, gdesc[UR4], R24, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/                   LDS.128 R4, [R30] ;
        /*0050*/                   LDS.128 R8, [R30] ;
        /*0060*/                   LDS.128 R12, [R30] ;
        /*0070*/                   BRA 0x70;
    """
    assert [each.write.address for each in overwritten_operands(listing)] == [0x60]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("LDS R4, [R30]", {4}),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", {4, 5, 6, 7}),
        ("LDSM.16.MT88.4 R8, [R30]", {8, 9, 10, 11}),
        ("LDSM.16.M88.2 R8, [R30]", {8, 9}),
        ("STS.128 [R30], R4", set()),
        ("STG.E.64 desc[UR4][R2.64], R4", set()),
        ("SHFL.BFLY PT, R24, R27, 0x2, 0x1f", {24}),
        ("ISETP.GT.AND P1, PT, R2, 0x3, PT", set()),
        ("IADD3 R24, P0, R2, R33, RZ", {24}),
        ("IMAD.WIDE R24, R2, 0x4, R8", {24, 25}),
        ("CS2R R24, SRZ", {24, 25}),
        ("CS2R.32 R24, SR_CLOCKLO", {24}),
        ("HMMA.16816.F32.BF16 R8, R4, R6, R8", {8, 9, 10, 11}),
        ("HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR4], R24", set(range(24, 32))),
        ("HGMMA.64x16x16.F16 R24, gdesc[UR4], R24", set(range(24, 28))),
        ("R2UR UR4, R24", set()),
        ("DADD R24, R2, R4", {24, 25}),
        ("MOV RZ, R4", set()),
    ],
)  # fmt: skip
def test_what_an_instruction_writes(text, written):
    (function,) = parse_sass(f"        /*0000*/    {text} ;")
    assert function.instructions[0].written == written


def test_no_listing():
    with pytest.raises(LayoutError, match="output of nvdisasm"):
        overwritten_operands("no listing")
    assert str(SassInstruction(16, "", "NOP", ())) == "0010: NOP"


SCRIPT = ROOT / "docs" / "upstream" / "operand_overwritten.py"


@pytest.mark.parametrize("site", triton_sites()[-2:-1])  # of all: tests/docs/test_upstream.py
def test_the_command(site: Path, tmp_path):
    """ptxas 12, of Triton 3.8, overwrites A of a pipelined matmul."""
    command = [
        sys.executable, "-m", "triton_ext", "compile", str(SCRIPT), "--target", "sm_90", "--sass",
    ]  # fmt: skip
    settings = environment(site) | {"TRITON_CACHE_DIR": str(tmp_path)}
    finished = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert finished.returncode == 1, finished.stderr
    said = "operand_overwritten.py:28: error: multiply: registers of A of 1 wgmma"
    assert said in finished.stderr
    assert "HGMMA.64x128x16.F32.BF16" in finished.stderr


def test_without_nvdisasm(monkeypatch):
    triton = pytest.importorskip("triton")
    from triton_ext.commands import sass

    class Missing:
        @property
        def nvdisasm(self):
            raise RuntimeError("Cannot find nvdisasm")

    monkeypatch.setattr(triton.knobs, "nvidia", Missing())
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    with pytest.raises(click.UsageError, match="install the CUDA toolkit, or set TRITON_NVDISASM"):
        sass.nvdisasm()
    monkeypatch.setattr(sass.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert sass.nvdisasm() == "/usr/bin/nvdisasm"
