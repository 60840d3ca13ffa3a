"""docs/guide/passes.md: its example is a pass that works, and says what the page shows."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from sites import ROOT

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triton_ext import passes  # noqa: E402

PAGE = (ROOT / "docs" / "guide" / "passes.md").read_text()


@triton.jit
def product(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    r = tl.arange(0, N)
    acc = tl.zeros((N, N), tl.float32)
    a = tl.load(a_ptr + r[:, None] * N + r[None, :])
    b = tl.load(b_ptr + r[:, None] * N + r[None, :])
    acc = tl.dot(a, b, acc)
    tl.store(c_ptr + r[:, None] * N + r[None, :], acc)


def compiled(element, arch):
    names = {"a_ptr": f"*{element}", "b_ptr": f"*{element}", "c_ptr": "*fp32", "N": "constexpr"}
    source = ASTSource(fn=product, signature=names, constexprs={"N": 64})
    options = {"enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@pytest.mark.parametrize("arch", [90, 100])
def test_the_example(arch, tmp_path, monkeypatch):
    from triton_ext.passes.frame import base, lookup

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    lookup.all_passes()  # whose modules register them once, in the registry of that moment
    with patch.dict(base.registered):
        (example,) = re.findall(
            r"```python\n(from triton_ext import passes\n.*?)```", PAGE, re.DOTALL
        )
        path = tmp_path / "example.py"
        path.write_text(example)
        exec(compile(example, str(path), "exec"), {"__name__": "example"})
        statements = [line for line in example.splitlines() if line.strip()]
        assert len(statements) <= 22
        with passes.enabled("no-fp32-products"):
            assert compiled("fp16", arch)
            with pytest.raises(passes.PassCompilationError) as caught:
                compiled("fp32", arch)
        (shown,) = re.findall(r"```\n(no-fp32-products: .*?)```", PAGE, re.DOTALL)
        found = re.sub(r"\S+:\d+:\d+: error", "kernel.py:12:14: error", str(caught.value))
        words, their_words = found.split(), shown.split()
        assert words == their_words


def test_the_table_lists_every_pass():
    listed = dict(re.findall(r"^\| `([\w-]+)` \| (\w+) \|", PAGE, re.MULTILINE))
    own = [each for each in passes.all_passes() if each.run.__module__.startswith("triton_ext")]
    assert listed == {each.name: each.stage for each in own}
