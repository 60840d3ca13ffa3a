"""Chains of views of shared memory, made by machine, through every pass and the emulated GPU.

A tile of nvmma, swizzled, shared-linear or padded memory, allocated as it is or as other bytes that
are reinterpreted, is filled from registers, by TMA, or by TMA in two parts; a chain of index,
slice, permute and reshape leads to the view that a product, a load, a TMA store, or a copy to
tensor memory reads. A right answer without passes must be one with each of them, and no pass may
complain.

``python tests/support/view_chains.py --seed N --first N --count N`` prints a line for each chain,
then the counts as JSON; it fails if anything went wrong. ``PYTHONPATH=.tritons/3.8.0`` before it
takes another release.
Each chain runs in a fork of a process that has compiled and run a few: where Triton itself aborts
or refuses, no pass is asked. What ends the process with passes, and not without, is a pass's fault.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
import triton
from forked import forked, own_cache
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from up_to_ptx import up_to_ptx

import triton_ext
from triton_ext.compat import async_load, async_store, load_accumulator, reinterpret

PASSES = (
    (
        "verify-descriptors{output=none}", "check-conversion{output=none}",
        "report-layouts{output=none}", "lint-shared",
    ),
    ("nvmma-to-linear{output=none}",),
    ("widen-swizzle{output=none}",),
)  # fmt: skip
"""Those of one compilation each: what rewrites stands alone."""


@dataclass(frozen=True)
class Steps:
    """The steps of a chain, each a name and its arguments: one compile-time value, as 3.7 makes
    values of the elements of tuples.
    """

    each: tuple[tuple, ...]


@gluon.constexpr_function
def step_name(chain, at):
    return chain.each[at][0] if at < len(chain.each) else "end"


@gluon.constexpr_function
def argument(chain, at, number):
    found = chain.each[at][number]
    return list(found) if isinstance(found, tuple) else found


@gluon.jit
def viewed(tile, CHAIN: gl.constexpr, AT: gl.constexpr):
    """The end of a chain of views."""
    NAME: gl.constexpr = step_name(CHAIN, AT)
    if NAME == "end":
        return tile
    else:  # noqa: RET505 (what follows a constant condition's return is compiled)
        FIRST: gl.constexpr = argument(CHAIN, AT, 1)
        if NAME == "slice":
            START: gl.constexpr = argument(CHAIN, AT, 2)
            LENGTH: gl.constexpr = argument(CHAIN, AT, 3)
            return viewed(tile.slice(START, LENGTH, dim=FIRST), CHAIN, AT + 1)
        elif NAME == "permute":  # noqa: RET505
            return viewed(tile.permute(FIRST), CHAIN, AT + 1)
        else:
            return viewed(tile.reshape(FIRST), CHAIN, AT + 1)


@gluon.jit
def tile_of(dtype: gl.constexpr, MADE: gl.constexpr, LAYOUT: gl.constexpr, SHAPE: gl.constexpr,
            BUFFERS: gl.constexpr, AT: gl.constexpr):  # fmt: skip
    """One buffer of a type, allocated as such, or as bytes or integers of the same bits."""
    WHOLE: gl.constexpr = [BUFFERS, SHAPE[0], SHAPE[1]]
    SIZE: gl.constexpr = dtype.primitive_bitwidth // 8
    INTEGER: gl.constexpr = gl.int16 if SIZE == 2 else gl.int32
    if MADE == "plain":
        return gl.allocate_shared_memory(dtype, WHOLE, LAYOUT).index(AT)
    elif MADE == "each":  # noqa: RET505 (what follows a constant condition's return is compiled)
        raw = gl.allocate_shared_memory(INTEGER, WHOLE, LAYOUT)
        ONE: gl.constexpr = [SHAPE[0], SHAPE[1]]
        return reinterpret(raw.index(AT), dtype, ONE, LAYOUT)
    elif MADE == "integers":
        raw = gl.allocate_shared_memory(INTEGER, WHOLE, LAYOUT)
        return reinterpret(raw, dtype, WHOLE, LAYOUT).index(AT)
    elif MADE == "bytes":
        BYTES: gl.constexpr = gl.NVMMASharedLayout(LAYOUT.swizzle_byte_width, 8, rank=2)
        raw = gl.allocate_shared_memory(gl.int8, [BUFFERS, SHAPE[0], SIZE * SHAPE[1]], BYTES)
        return reinterpret(raw, dtype, WHOLE, LAYOUT).index(AT)
    else:
        FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        raw = gl.allocate_shared_memory(gl.int8, [SIZE * BUFFERS * SHAPE[0] * SHAPE[1]], FLAT)
        return reinterpret(raw, dtype, WHOLE, LAYOUT).index(AT)


@gluon.jit
def fill(source, memory, SHAPE: gl.constexpr):
    """A tile from global memory, by way of registers."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, SHAPE[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, SHAPE[1], gl.SliceLayout(0, layout))
    memory.store(gl.load(source + rows[:, None] * SHAPE[1] + columns[None, :]))


@gluon.jit
def write(target, values, layout: gl.constexpr):
    """A matrix to global memory, row by row."""
    rows = gl.arange(0, values.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
    gl.store(target + rows[:, None] * values.shape[1] + columns[None, :], values)


@gluon.jit
def chain_kernel(
    source, desc, left, target, out_desc, MADE: gl.constexpr, LAYOUT: gl.constexpr,
    SHAPE: gl.constexpr, BUFFERS: gl.constexpr, AT: gl.constexpr, CHAIN: gl.constexpr,
    BY: gl.constexpr, USE: gl.constexpr, M: gl.constexpr,
):  # fmt: skip
    """Fill one buffer, follow the chain, use its end."""
    tile = tile_of(source.dtype.element_ty, MADE, LAYOUT, SHAPE, BUFFERS, AT)
    if BY != "registers":
        bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(bar, count=1)
        fence_async_shared()
        mbarrier.expect(bar, SHAPE[0] * SHAPE[1] * source.dtype.element_ty.primitive_bitwidth // 8)
        PART: gl.constexpr = SHAPE[0] // (2 if BY == "parts" else 1)
        for i in gl.static_range(SHAPE[0] // PART):
            async_load(desc, [i * PART, 0], bar, tile.slice(i * PART, PART))
        mbarrier.wait(bar, 0)
        mbarrier.invalidate(bar)
    else:
        fill(source, tile, SHAPE)
        fence_async_shared()
    view = viewed(tile, CHAIN, 0)
    if USE == "load":
        registers: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
        write(target, view.load(registers), registers)
    elif USE == "store":
        gl.barrier()
        fence_async_shared()
        async_store(out_desc, [0, 0], view)
        tma.store_wait(0)
    elif USE == "copy":
        copied = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(copied, count=1)
        columns: gl.constexpr = blackwell.TensorMemoryLayout(view.shape, col_stride=1)
        memory = blackwell.allocate_tensor_memory(view.dtype, view.shape, columns)
        blackwell.tcgen05_copy(view, memory)
        blackwell.tcgen05_commit(copied)
        mbarrier.wait(copied, 0)
        rows = load_accumulator(memory)
        write(target, rows, rows.type.layout)
    else:
        A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, view.shape[0]], gl.float16)
        N: gl.constexpr = view.shape[1]
        a = gl.allocate_shared_memory(gl.float16, [M, view.shape[0]], A)
        EXTENT: gl.constexpr = [M, view.shape[0]]
        fill(left, a, EXTENT)
        fence_async_shared()
        if USE == "wgmma":
            sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
            zeros = gl.zeros((M, N), gl.float32, sums)
            done = warpgroup_mma_wait(0, deps=(warpgroup_mma(a, view, zeros, is_async=True),))
            write(target, done, sums)
        else:
            ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
            mbarrier.init(ready, count=1)
            place: gl.constexpr = blackwell.TensorMemoryLayout([M, N], col_stride=1)
            total = blackwell.allocate_tensor_memory(gl.float32, [M, N], place)
            blackwell.tcgen05_mma(a, view, total, use_acc=False)
            blackwell.tcgen05_commit(ready)
            mbarrier.wait(ready, 0)
            values = load_accumulator(total)
            write(target, values, values.type.layout)


@dataclass(frozen=True)
class Chain:
    """One case: memory, how it is filled, the views, and what reads the last one."""

    arch: int
    made: str
    kind: str
    width: int
    shape: tuple[int, int]
    buffers: int
    at: int
    steps: tuple[tuple, ...]
    by: str
    use: str
    bits: int

    def layout(self):
        if self.kind == "nvmma":
            return gl.NVMMASharedLayout(self.width, self.bits, rank=2)
        if self.kind == "swizzled":
            return gl.SwizzledSharedLayout(8, 1, self.width // 16 or 1, [1, 0])
        if self.kind == "padded":
            return gl.PaddedSharedLayout.with_identity_for([[64, 8]], list(self.shape), [1, 0])
        rows, columns = self.shape
        bases = [[0, 1 << bit] for bit in range(columns.bit_length() - 1)]
        bases += [[1 << bit, 0] for bit in range(rows.bit_length() - 1)]
        return gl.SharedLinearLayout(bases)


def applied(tile: torch.Tensor, steps) -> torch.Tensor:
    """The same views, in torch."""
    for name, *arguments in steps:
        if name == "slice":
            dim, start, length = arguments
            tile = tile.narrow(dim, start, length)
        elif name == "permute":
            tile = tile.permute(arguments[0])
        elif name == "reshape":
            tile = tile.reshape(arguments[0])
    return tile


def chain(random_: random.Random) -> Chain:
    """A chain whose end is a matrix."""
    arch = random_.choice((90, 100))
    kind = random_.choice(("nvmma", "nvmma", "nvmma", "swizzled", "linear", "padded"))
    width = random_.choice((32, 64, 128))
    by = random_.choice(("registers", "tma", "parts")) if kind == "nvmma" else "registers"
    made = random_.choice(
        ("plain", "plain", "each", "integers", "flat", *(("bytes",) if kind == "nvmma" else ()))
    )
    uses = ["load"]
    if kind == "nvmma":
        uses += ["store"] + 3 * ["wgmma" if arch == 90 else "tcgen05"]
        uses += 2 * ["copy"] if arch == 100 else []
    use = random_.choice(uses)
    shape = [random_.choice((32, 64, 128)), random_.choice((32, 64, 128))]
    if use == "copy":
        shape[0] = 128
    if width // 2 > shape[1]:
        shape[1] = width // 2
    extents, steps = list(shape), []
    for _ in range(random_.randrange(1, 4)):
        name = random_.choice(("slice", "slice", "permute", "reshape"))
        if name == "slice":
            dim = random_.randrange(len(extents))
            if extents[dim] >= 32:
                length = random_.choice([size for size in (16, 32, 64) if size <= extents[dim]])
                start = length * random_.randrange(extents[dim] // length)
                steps.append(("slice", dim, start, length))
                extents[dim] = length
        elif name == "permute":
            order = tuple(random_.sample(range(len(extents)), len(extents)))
            steps.append(("permute", order))
            extents = [extents[i] for i in order]
        elif len(extents) == 2 and extents[0] >= 32:  # of rank 3, and back at the end
            extents = [extents[0] // 16, 16, extents[1]]
            steps.append(("reshape", tuple(extents)))
    if len(extents) == 3:
        extents = [extents[0] * extents[1], extents[2]]
        steps.append(("reshape", tuple(extents)))
    if (use == "copy" and extents[0] != 128) or (use == "store" and extents[1] < width // 2):
        use = "load"
    buffers = random_.choice((1, 2, 4) if made == "flat" else (1, 2, 3))
    bits = 32 if use == "copy" else random_.choice((16, 16, 32)) if use == "load" else 16
    return Chain(arch, made, kind, width, tuple(shape), buffers, random_.randrange(buffers),
                 tuple(steps), by, use, bits)  # fmt: skip


def run(job) -> dict:
    """What a chain of a seed does."""
    return used(chain(random.Random(job["seed"])), job["number"], job.get("passes", PASSES))


def used(one: Chain, number: int, passes=PASSES) -> dict:
    """What one chain does, without passes and with each; `number` is the seed of its data."""
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(number)

    def filled(*shape, dtype=torch.half):
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)

    source = filled(*one.shape, dtype=torch.half if one.bits == 16 else torch.float)
    end = applied(source, one.steps)
    layout, m = one.layout(), 64 if one.use == "wgmma" else 128
    left = filled(m, end.shape[0])
    is_product = one.use in ("wgmma", "tcgen05")
    want = left.float() @ end.float() if is_product else end
    target = torch.zeros_like(want).contiguous()
    part = [one.shape[0] // (2 if one.by == "parts" else 1), one.shape[1]]
    stored = target.half()
    desc = TensorDescriptor.from_tensor(source, part, layout) if one.kind == "nvmma" else source
    out_desc = stored
    if one.use == "store":
        out_desc = TensorDescriptor.from_tensor(stored, list(stored.shape), layout)

    def launch():
        target.zero_()
        stored.zero_()
        chain_kernel[(1,)](
            source, desc, left, target, out_desc, one.made, layout, one.shape, one.buffers,
            one.at, Steps(one.steps), one.by, one.use, m, num_warps=4,
        )  # fmt: skip
        found = stored if one.use == "store" else target
        return bool(torch.equal(found.to(want.dtype), want))

    wrong = {}
    with triton_ext.emulate(f"sm_{one.arch}"), up_to_ptx():
        try:
            if not launch():
                return {"skipped": "wrong without passes"}
        except Exception as error:
            words = str(error.__cause__ or error)[-300:]
            return {"skipped": f"{type(error).__name__}: {words}"}
        for names in passes:
            name = ", ".join(each.partition("{")[0] for each in names)
            try:
                with triton_ext.passes.enabled(*names) as results:
                    is_right = launch()
            except Exception as error:
                wrong[name] = f"{type(error).__name__}: {error}"[:500]
                continue
            said = [
                each.message for each in results.diagnostics
                if each.severity == "error" or "stays as it was" in each.message
            ]  # fmt: skip
            if not is_right or said:
                wrong[name] = f"right: {is_right}; {said}"[:500]
    return {"wrong": wrong}


PLAIN = [
    Chain(arch, "plain", "nvmma", 64, (64, 64), 1, 0, (), "tma", use, 16)
    for arch, product in ((90, "wgmma"), (100, "tcgen05")) for use in ("load", product)
]  # fmt: skip
"""What the forks' parent runs, so that they inherit what is imported and set up once."""
LIMIT = 60
"""Seconds of processor time for one chain."""


def judged(seed: int, number: int) -> dict:
    """What becomes of one chain of a seed."""
    job = {"seed": f"{seed} {number}", "number": number}
    found = forked(run, job, LIMIT)
    if "error" in found and "error" not in forked(run, {**job, "passes": ()}, LIMIT):
        found = {"wrong": {"a pass": found["error"]}}
    return {"chain": repr(chain(random.Random(job["seed"]))), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first chain")
    parser.add_argument("--count", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # the parent's pool of threads is not forked: who asks it waits
    counts: Counter[str] = Counter()
    with own_cache():
        for one in PLAIN:
            assert used(one, 0).get("wrong") == {}, one
        for number in range(chosen.first, chosen.first + chosen.count):
            found = judged(chosen.seed, number)
            if "wrong" not in found:
                said = [f"not run: {found.get('error') or found['skipped']}"[-300:]]
            else:
                said = ["run", *(f"wrong: {name}" for name in found["wrong"])]
            counts.update(said)
            lines = [f"{number}: {', '.join(said)}"]
            lines += [f"{name}: {words}" for name, words in found.get("wrong", {}).items()]
            lines += [found["chain"]] if said != ["run"] else []
            print("\n    ".join(lines), file=sys.stderr, flush=True)
    made_with = {"triton": triton.__version__, "seed": chosen.seed}
    print(json.dumps({**made_with, **dict(sorted(counts.items()))}))
    return int(any(name.startswith("wrong") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
