"""``triton-ext demo``: a layout, its checks, and a kernel compiled from it and run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click

from triton_ext.commands.common import needing_kernels
from triton_ext.layouts.dump import dump_encoding
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.layouts.triton.checks import check_against_documented_atom, check_against_triton
from triton_ext.ptx.text import without_debug_lines
from triton_ext.render.grid import draw_grid
from triton_ext.render.text import dump_text, explain


@click.command()
def demo() -> None:
    """Show a Blackwell layout, its checks, and a matmul compiled from it (needs Triton, torch)."""
    with needing_kernels():
        import torch  # noqa: F401
        import triton  # noqa: F401
    if not _demonstrate():
        raise click.ClickException("a check failed")


def _demonstrate() -> bool:
    """Print the demonstration; whether every check in it passed."""
    shape, encoding = (128, 64), NVMMAShared(128, 16)
    _show_layout(shape, encoding)
    _heading("3. Checked")
    atom, tile = check_against_documented_atom(encoding), check_against_triton(shape, encoding)
    passed = [
        _report(atom.agrees, atom.message),
        _report(tile.agrees, tile.message),
        _compile(),
        _multiply(),
    ]
    click.echo()
    return all(passed)


def _heading(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _report(agrees: bool, message: str) -> bool:
    mark = click.style("ok", fg="green") if agrees else click.style("FAILED", fg="red")
    click.echo(f"  {mark}: {message}")
    return agrees


def _show_layout(shape: tuple[int, int], encoding: NVMMAShared) -> None:
    _heading(f"1. The layout of a {shape[0]}x{shape[1]} fp16 tile of A for tcgen05.mma")
    tile = dump_encoding(encoding, shape)
    click.echo(dump_text(tile))
    click.echo("\n" + explain(tile))
    _heading("2. Its 128-byte swizzle atom, as offsets")
    atom = dump_encoding(encoding, core=True)
    assert atom.layout is not None
    click.echo(draw_grid(atom.layout, atom.element_bitwidth))


PAIRS: dict[str, Any] = {
    "block_n": 256, "block_k": 64, "stages": 6, "consumers": 1, "cluster_m": 2, "cta_group": 2,
    "c_parts": 4, "c_buffers": 2,
}  # fmt: skip
"""Tiles of 256x256, which the tensor cores of two blocks multiply together."""


def _compile() -> bool:
    from triton_ext.kernels.launch import compile_matmul, kernel_constants
    from triton_ext.kernels.spec import kernel_spec

    config = kernel_spec(100, "fp16", b_major="MN", **PAIRS)
    _heading("4. A Blackwell matmul compiled from it, with no GPU: roles of warps, pairs of blocks")
    kernel = compile_matmul(config)
    ptx = without_debug_lines(kernel.asm["ptx"])
    for line in kernel.asm["ttgir"].splitlines():
        if line.startswith("#shared") and "shared_linear" in line:
            click.echo(f"  TTGIR: {line if len(line) < 100 else line[:97] + '...'}")
    opcodes = Counter(re.findall(r"\b(?:tcgen05\.mma|cp\.async\.bulk\.tensor)[\w.:]*", ptx))
    for opcode, count in sorted(opcodes.items()):
        click.echo(f"  PTX: {count} x {opcode}")
    click.echo(f"  cubin: {len(kernel.asm['cubin'])} bytes for sm_100a")
    theirs = compile_matmul(config, kernel_constants(config, generated_layouts=False))
    return _report(
        ptx == without_debug_lines(theirs.asm["ptx"]),
        "the PTX of the kernel with our bases and of the one with Triton's own NVMMA encoding"
        " are the same, line by line",
    )


def _multiply() -> bool:
    import torch

    from triton_ext.kernels.spec import kernel_spec
    from triton_ext.ops import matmul

    found = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if found else "an emulated Blackwell GPU"
    m, k, n = (1000, 776, 1234) if found else (200, 136, 168)
    _heading(f"5. Run on {name}")
    device = "cuda" if found else "cpu"
    a = torch.randn((m, k), device=device, dtype=torch.float16)
    b = torch.randn((k, n), device=device, dtype=torch.float16)
    config = None if found else kernel_spec(100, "fp16", b_major="MN", **PAIRS)
    product = matmul(a, b, config=config)
    exact = a.double() @ b.double()
    error_norm = float((product.double() - exact).norm() / exact.norm())
    return _report(
        error_norm < 2.0**-11,
        f"matmul {m}x{k} @ {k}x{n} on {name}: relative error {error_norm:.1e} (float64)",
    )
