"""Distributed layouts: against Triton's own conversion, on every release at hand."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from sites import ROOT, SUPPORT, triton_sites

from triton_ext.errors import LayoutError
from triton_ext.layouts.distributed import (
    Blocked,
    DotOperand,
    NvidiaMma,
    Slice,
    distributed_linear_layout,
    parse_distributed,
)

WORKER = SUPPORT / "register_layouts_worker.py"
CASES = 500


def powers(draw: random.Random, rank: int, total: int) -> list[int]:
    """`rank` powers of two whose product is `total`."""
    found = [1] * rank
    for _ in range(total.bit_length() - 1):
        found[draw.randrange(rank)] *= 2
    return found


def cluster(draw: random.Random, rank: int) -> list[list[int]]:
    """The bases of a cluster of up to 4 blocks, some of which share."""
    sizes, bases = [1] * rank, []
    for _ in range(draw.choice((0, 0, 1, 2))):
        basis = [0] * rank
        if draw.random() < 0.8:
            dim = draw.randrange(rank)
            basis[dim], sizes[dim] = sizes[dim], 2 * sizes[dim]
        bases.append(basis)
    return bases


def with_cluster(text: str, bases: list[list[int]]) -> str:
    return text + (f", CGALayout = {bases}" if bases else "")


def blocked(draw: random.Random, rank: int) -> str:
    order = draw.sample(range(rank), rank)
    text = (
        f"sizePerThread = {powers(draw, rank, draw.choice((1, 2, 4, 8, 16)))},"
        f" threadsPerWarp = {powers(draw, rank, 32)},"
        f" warpsPerCTA = {powers(draw, rank, draw.choice((1, 4, 8)))}, order = {order}"
    )
    return f"#ttg.blocked<{{{with_cluster(text, cluster(draw, rank))}}}>"


def nvidia_mma(draw: random.Random, rank: int, version: int) -> str:
    if version == 3:
        instruction = [16, draw.choice((8, 16, 32, 64, 128, 256)), draw.choice((8, 16, 32))]
        warps = [draw.choice((4, 8)), draw.choice((1, 2))]
    else:
        instruction = [1] * (rank - 2) + [16, 8]
        warps = powers(draw, rank, draw.choice((1, 4, 8)))
    text = (
        f"versionMajor = {version}, versionMinor = 0, warpsPerCTA = {warps},"
        f" instrShape = {instruction}"
    )
    return f"#ttg.nvidia_mma<{{{with_cluster(text, cluster(draw, len(warps)))}}}>"


def dot_operand(draw: random.Random, rank: int) -> str:
    operand = draw.randrange(2)
    if draw.random() < 0.3:
        return f"#ttg.dot_op<{{opIdx = {operand}, parent = {blocked(draw, rank)}}}>"
    version = 3 if rank == 2 and draw.random() < 0.4 else 2
    operand = 0 if version == 3 else operand
    parent = nvidia_mma(draw, rank, version)
    width = draw.choice((1, 2, 4))
    return f"#ttg.dot_op<{{opIdx = {operand}, parent = {parent}, kWidth = {width}}}>"


def linear(draw: random.Random, rank: int) -> str:
    """A blocked layout's bases, as registers, lanes and warps of a linear one."""
    shape = [2 ** draw.randrange(3, 7) for _ in range(rank)]
    layout = distributed_linear_layout(with_no_cluster(draw, rank), shape)
    bases = {name: [list(basis) for basis in found] for name, found in layout.bases.items()}
    bases["register"] = [basis for basis in bases["register"] if any(basis)]
    text = ", ".join(f"{name} = {found}" for name, found in bases.items())
    return f"#ttg.linear<{{{text}, block = []}}>"


def with_no_cluster(draw: random.Random, rank: int) -> str:
    while "CGALayout" in (text := blocked(draw, rank)):
        pass
    return text


def encoding(draw: random.Random, rank: int) -> str:
    kind = draw.choice(("blocked", "mma2", "mma3", "dot", "linear", "slice"))
    if kind == "slice":
        parent = encoding(draw, rank + 1)
        while "ttg.slice" in parent and parent.count("parent") > 2:
            parent = encoding(draw, rank + 1)
        return f"#ttg.slice<{{dim = {draw.randrange(rank + 1)}, parent = {parent}}}>"
    if kind == "linear":
        return linear(draw, rank)
    if kind == "blocked" or rank == 1 or (rank > 2 and kind == "mma3"):
        return blocked(draw, rank)
    if kind == "dot":
        return dot_operand(draw, rank)
    return nvidia_mma(draw, rank, int(kind[-1]))


@functools.cache
def cases() -> list[dict[str, object]]:
    draw = random.Random(5)
    found = []
    while len(found) < CASES:
        rank = draw.choice((1, 2, 2, 2, 3))
        text = encoding(draw, rank)
        if parse_distributed(text).rank != rank:
            continue
        shape = [2 ** draw.randrange(0, 8) for _ in range(rank)]
        if "ttg.linear" in text:  # it must span the tensor
            layout = parse_distributed(text)
            while isinstance(layout, Slice):
                layout = layout.parent
            if text.startswith("#ttg.slice"):
                continue
            every = [basis for _, vectors in layout.bases for basis in vectors]
            shape = [1 << max(basis[i].bit_length() for basis in every) for i in range(rank)]
        found.append({"encoding": text, "shape": shape})
    return found


@functools.cache
def answers(site: Path | None) -> tuple[str, list[object]]:
    path = filter(None, (site and str(site), str(ROOT), os.environ.get("PYTHONPATH")))
    finished = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(cases()),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        check=True,
    )
    version, *found = map(json.loads, finished.stdout.splitlines())
    return version, found


@pytest.mark.parametrize("site", triton_sites())
def test_the_layouts_are_tritons(site):
    version, found = answers(site)
    assert len(found) == CASES
    compared = set()
    for case, answer in zip(cases(), found, strict=True):
        assert isinstance(answer, list), (case, answer)
        layout = distributed_linear_layout(case["encoding"], case["shape"])
        if version.startswith("3.9") and case["encoding"].startswith("#ttg.blocked"):
            # 3.9 leaves out the registers of a blocked layout that lie beyond the shape.
            layout = layout.remove_zero_bases("register")
        bases = [
            [list(basis) for basis in layout.bases.get(name, [])]
            for name in ("register", "lane", "warp", "block")
        ]
        assert bases == answer, case
        compared.add(case["encoding"].partition("<")[0])
    kinds = {"blocked", "nvidia_mma", "dot_op", "linear", "slice"}
    assert compared == {f"#ttg.{kind}" for kind in kinds}


def test_the_operand_of_64_bit_elements():
    """m8n8k4 (PTX ISA): a thread holds one element of A, four threads a row.

    Triton 3.8 and 3.9 agree; 3.7 lays out 16 rows.
    """
    shape = "warpsPerCTA = [1, 1], instrShape = [8, 8]"
    mma = f"#ttg.nvidia_mma<{{versionMajor = 2, versionMinor = 0, {shape}}}>"
    layout = distributed_linear_layout(
        f"#ttg.dot_op<{{opIdx = 0, parent = {mma}, kWidth = 1}}>", (8, 4)
    )
    assert layout.bases["register"] == []
    assert layout.bases["lane"] == [(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)]


def test_aliases_and_their_text_form():
    aliases = {
        "#blocked": str(Blocked((1, 4), (4, 8), (4, 1), (1, 0))),
        "#mma": "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1],"
        " instrShape = [16, 64, 16]}>",
    }
    found = parse_distributed("#ttg.slice<{dim = 1, parent = #blocked}>", aliases)
    assert found == Slice(1, Blocked((1, 4), (4, 8), (4, 1), (1, 0)))
    operand = parse_distributed("#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>", aliases)
    assert operand == DotOperand(0, NvidiaMma(3, (4, 1), (16, 64, 16)), 2)
    inline = f"#ttg.slice<{{dim = 1, parent = {aliases['#blocked']}}}>"
    assert parse_distributed(inline) == found
    cluster = Blocked((1, 4), (4, 8), (4, 1), (1, 0), ((1, 0),))
    assert parse_distributed(str(cluster)) == cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#ttg.amd_mfma<{version = 3}>", "must be a #ttg.blocked"),
        ("#ttg.blocked<{sizePerThread = [1]}>", "'threadsPerWarp' is missing"),
        (
            "#ttg.blocked<{sizePerThread = [3], threadsPerWarp = [32], warpsPerCTA = [4],"
            " order = [0]}>",
            "powers of two",
        ),
        (
            "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4],"
            " order = [1]}>",
            "permutation",
        ),
        ("#ttg.slice<{dim = 2, parent = #blocked}>", "one of the parent's 2"),
        (
            "#ttg.nvidia_mma<{versionMajor = 5, versionMinor = 0, warpsPerCTA = [4, 1],"
            " instrShape = [16, 8]}>",
            "2 (mma.sync) or 3 (wgmma)",
        ),
        ("#ttg.slice<{dim = 0, parent = #loop}>", "nested too deeply"),
        (
            "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1],"
            " instrShape = [[16], x]}>",
            "must be a sequence of integers",
        ),
        (
            "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1, 1],"
            " instrShape = [16, 64, 16]}>",
            "must be 2 extents",
        ),
    ],
)
def test_bad_attributes(text, said):
    aliases = {
        "#blocked": str(Blocked((1, 4), (4, 8), (4, 1), (1, 0))),
        "#loop": "#ttg.slice<{dim = 0, parent = #loop}>",
    }
    with pytest.raises(LayoutError) as raised:
        parse_distributed(text, aliases)
    assert said in str(raised.value)
