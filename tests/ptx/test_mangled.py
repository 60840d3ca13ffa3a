"""Mangled PTX: a listing or a LayoutError, soon."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import time

import pytest
from mutations import some
from ptx_samples import HEADER, REAL, listing

from triton_ext import LayoutError

ALPHABET = '%{}[](),;.:@!|+-_$/*"< \tard0159xZ'
MANGLED_FOR_EACH = some(500)


@functools.cache
def real(path):
    return path.read_text().splitlines()


def mangled(lines, generator):
    """A stretch of real PTX between its head and its end, with lines cut, doubled and mangled."""
    body = next(i for i, line in enumerate(lines) if line.startswith("{"))
    length = generator.choice([12, 24, 48])
    start = generator.randrange(body, len(lines))
    kept = [*lines[: body + 4], *lines[start : start + length], "}", *lines[-2:]]
    if generator.random() < 0.05:
        kept = list(lines)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(kept))
        change = generator.choice(["cut", "double", "swap", "insert", "replace", "join"])
        line = kept[at]
        where = generator.randint(0, len(line))
        text = "".join(generator.choices(ALPHABET, k=generator.randint(1, 6)))
        if change == "cut" and len(kept) > 1:
            del kept[at]
        elif change == "double":
            kept[at:at] = [line] * generator.choice([1, 1, 2, 50])
        elif change == "swap":
            kept[at], kept[at - 1] = kept[at - 1], kept[at]
        elif change == "insert":
            kept[at] = line[:where] + text + line[where:]
        elif change == "replace":
            kept[at] = line[:where] + text + line[where + len(text) :]
        elif at + 1 < len(kept):
            kept[at : at + 2] = [line[:where] + kept[at + 1]]
    return "\n".join(kept)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_mangled_ptx_raises_only_layout_error(path):
    """A LayoutError or a listing, and none takes long; 10,000 in all by `make oracle`."""
    generator = random.Random(path.stem)
    listed, refused, slowest = 0, 0, 0.0
    for _ in range(MANGLED_FOR_EACH):
        text = mangled(real(path), generator)
        begin = time.process_time()
        try:
            listing(text)
            listed += 1
        except LayoutError:
            refused += 1
        except Exception:
            print(text)
            raise
        slowest = max(slowest, time.process_time() - begin)
    assert listed > MANGLED_FOR_EACH // 4
    assert refused > some(5)
    assert slowest < 2.0


REPEATED = [
    "\tadd.s32 %r1, %r1, 1;\n",
    "\twgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1, %r2}, %rd1, %rd2, 1, 1, 1;\n",
    "\t{\n\t}\n",
    "@%p1 bra E;\n",
    "add.s32 %r1, %r1, 1;\n@%p1 bra E;\n",
    "@%p1 bra S;\nadd.s32 %r1, %r1, 1;\nadd.s32 %r2, %r1, 1;\n",
    "L: {\n .reg .pred p; L: @p bra L;\n }\n",
    "\n",
    "/* ",
    ".loc 1 ",
    ".entry k(",
    ".func f();\n",
    ".reg .b32 %r<5>;\n",
    '.file 1 "x"\n',
    "mov.b32 %r1 {",
    "a:b:",
    "((((",
    ", ",
    "1",
    ".param ",
    ".param .ptr .",
    "%r1%r1",
]


def seconds(piece, count):
    text = HEADER.format(target="sm_90a") + ".entry k(.param .u64 a)\n{\nS: mov.b32 %r2, 0;\n"
    text += piece * count + "\nE: ret;\n}\n"
    gc.disable()  # its own work grows with all that is alive
    begin = time.process_time()
    try:
        with contextlib.suppress(LayoutError):
            listing(text)
        return time.process_time() - begin
    finally:
        gc.enable()


@pytest.mark.parametrize("piece", REPEATED)
def test_time_is_linear(piece):
    """8 times the text takes 8 times as long, give or take; quadratic would be 64 times.

    CPU time of this process, which a busy machine makes longer, too: it gets several tries.
    """
    count = 2000
    ratios = []
    for _ in range(10):
        few = min(seconds(piece, count) for _ in range(2))
        ratios.append(seconds(piece, 8 * count) / max(few, 0.004))
        if ratios[-1] < 32:
            return
    raise AssertionError(f"8 times the text takes {min(ratios):.0f} times as long")
