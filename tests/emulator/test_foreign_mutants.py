"""Bugs seeded into the kernel of a program: ``foreign_mutants`` on one whose bugs are known."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from sites import DATA

pytest.importorskip("torch")
pytest.importorskip("triton")

from foreign_cuda import Program, Project
from foreign_mutants import Foreign, judged, table, word_of
from ptx_faults import in_fork

EXCHANGED = """
  .shared .align 4 .b8 parts[512];
  mov.u32 %r3, parts;
  shl.b32 %r4, %r1, 2;
  add.u32 %r3, %r3, %r4;
  xor.b32 %r4, %r3, 4;
  ld.global.f32 %f4, [%rd5];
  st.shared.f32 [%r3], %f4;
  bar.sync 0, 128;
  ld.shared.f32 %f4, [%r4];
  bar.sync 0, 128;
  st.shared.f32 [%r3], %f4;
  bar.warp.sync -1;
  ld.shared.f32 %f4, [%r4];
  bar.sync 0, 128;
"""
"""Neighbours exchange their numbers twice; the last barrier orders nothing."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_mutants_of_a_program(tmp_path):
    ptx = (DATA / "programs/saxpy.ptx").read_text()
    ptx = ptx.replace("  ld.global.f32 %f4, [%rd5];\n", EXCHANGED).replace("%r<3>", "%r<9>")
    ptx = ptx.replace("  @%p1 bra DONE;\n", "").replace("DONE:", "")
    ptx = ptx.replace("  add.s64 %rd5", "  @%p1 mov.u64 %rd3, 0;\n  add.s64 %rd5")
    ptx = ptx.replace("  st.global", "  @!%p1 st.global").replace(
        "  ld.global.f32 %f5", "  @!%p1 ld.global.f32 %f5"
    )
    (tmp_path / "k.ptx").write_text(ptx)
    host, script = tmp_path / "host", tmp_path / "script"
    source = DATA / "programs/driver_program.c"
    subprocess.run(["cc", "-w", "-o", str(host), str(source), "-ldl"], check=True)
    script.write_text(
        f"#!/bin/sh\n[ \"$({host} plain {tmp_path}/k.ptx | tail -n 1)\" = '1 595 132' ]"
        " && echo right || { echo wrong; exit 2; }\n"
    )
    script.chmod(0o755)
    program = Program(Project("a/b", "", ""), "saxpy", 90, "", "")
    mutants = in_fork(lambda: list(judged(Foreign.of(program, script), 9, 4801)))
    found = [(each["kind"], word_of(each)) for each in mutants]
    assert found == [
        ("bar.sync dropped", "found, every schedule"), ("bar.sync dropped", "silent, proven"),
        ("bar.sync dropped", "silent, proven"), ("bar.warp.sync dropped", "found, every schedule"),
    ]  # fmt: skip
    assert "| all | 4 | 2 | 0 | 0 | 0 | 2 | 0 | 0 |" in table(mutants, "kind")
