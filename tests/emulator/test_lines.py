"""The source lines that errors name are lines of the program."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kernel_cases  # noqa: E402
import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.emulator.errors import MemoryFault  # noqa: E402
from triton_ext.ptx.parse import parse_ptx  # noqa: E402


@functools.cache
def code_lines(file):
    """The lines of a Python file on which something begins."""
    return {getattr(node, "lineno", 0) for node in ast.walk(ast.parse(Path(file).read_text()))}


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The PTX of what is compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    texts = []

    def listen(metadata_group, **_):
        texts.extend(Path(p).read_text() for n, p in metadata_group.items() if n.endswith(".ptx"))

    monkeypatch.setattr(knobs.compilation, "listener", listen)
    return texts


SOME = ("dot-64x64x64-64", "sum-float", "descriptor-64x208")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_every_instruction_has_a_line_of_the_program(arch, compiled):
    """Also those in inline assembly, whose lines LLVM counts on."""
    every = list(kernel_cases.all_cases())
    cases = [next(case for case in every if case.name.startswith(name)) for name in SOME]
    for kernel in vars(kernel_cases).values():
        if isinstance(kernel, triton.JITFunction):
            kernel.device_caches.clear()  # what an earlier test of this process has compiled
    with triton_ext.emulate(arch, cuda_on_host=True, idle=True):
        for case in cases:
            case.run("cuda", True)
    assert len(compiled) == len(SOME)
    sources = {
        each.source for text in compiled for k in parse_ptx(text).kernels for each in k.instructions
    }
    found = [source for source in sources - {None} if Path(source.file).is_file()]
    assert len(found) > 10
    assert [str(each) for each in found if each.line not in code_lines(each.file)] == []


@triton.jit
def spread(x, y, n):

    at = tl.program_id(0) * 256 + tl.arange(0, 256)

    a = tl.load(x + at, mask=at < n)  # the first load

    # a line without code
    b = tl.load(y + at, mask=at < n)  # the second load

    tl.store(y + at, a + b, mask=at < n)  # the store


@pytest.mark.parametrize(
    ("x", "y", "n", "line"),
    [(128, 256, 256, "# the first load"), (256, 128, 256, "# the second load")],
)
def test_a_fault_names_its_line(x, y, n, line):
    with triton_ext.emulate("sm_100"), pytest.raises(MemoryFault) as caught:
        spread[(1,)](torch.zeros(x), torch.zeros(y), n)
    assert caught.value.instruction.source.line == line_of(line)
    shown, caret = str(caught.value).split("source: ")[1].splitlines()[1:3]
    assert shown.strip().endswith(line)
    assert shown[caret.index("^") :].startswith("tl.load(")


HELPER = """import triton
import triton.language as tl


@triton.jit
def read(x, at):
    return tl.load(x + at)
"""
KERNEL = """import triton
import triton.language as tl
from {package}.helper import read


@triton.jit
def kernel(x, y, in_helper: tl.constexpr):
    at = tl.arange(0, 128)
    value = read(x, at) if in_helper else tl.load(x + at)
    tl.store(y + at, value)
"""


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("second", ["kernel", "copied"])
@pytest.mark.parametrize("in_helper", [False, True])
def test_a_kernel_from_the_cache_names_the_file_at_hand(
    in_helper, second, linked, compiled, tmp_path, monkeypatch
):
    """Triton's cache knows a kernel by its text: it was compiled in another checkout, or of
    a copy by another name; or another checkout is reached through links."""
    named = []
    for checkout, module in (("first", "kernel"), ("second", second)):
        folder = tmp_path / checkout / "lib"
        real = tmp_path / "real" / checkout if linked else folder
        real.mkdir(parents=True)
        if linked:
            folder.parent.mkdir()
            folder.symlink_to(real)
        (folder / "helper.py").write_text(HELPER)
        (folder / f"{module}.py").write_text(KERNEL.format(package="lib"))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / checkout)
            for name in ("lib", "lib.helper", f"lib.{module}"):
                patch.delitem(sys.modules, name, raising=False)
            kernel = importlib.import_module(f"lib.{module}").kernel
        with triton_ext.emulate("sm_90"), pytest.raises(MemoryFault) as caught:
            kernel[(1,)](torch.zeros(64), torch.zeros(128), in_helper)
        named.append(caught.value.instruction.source.file)
    assert len(compiled) == 2, "once compiled, once found"
    assert len({*compiled}) == 1
    files = ["helper.py"] * 2 if in_helper else ["kernel.py", f"{second}.py"]
    found = [tmp_path / "first" / "lib" / files[0], tmp_path / "second" / "lib" / files[1]]
    assert named == [str(each) for each in found]
