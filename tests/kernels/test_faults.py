"""Faults that are put into the PTX of kernels with consumers, one at a time: the emulator notices.

Each is what a programmer could have forgotten or got wrong: a wait, the phase it waits for, an
arrival, a commit, a multicast mask, the bytes that a barrier expects, a fence, a barrier's count,
a barrier of the cluster or the warpgroup, an atomic's order, whether a product adds to the sums. A
few of some kernels of sm_100, and of two of sm_90 whose blocks deal out their copies, of which one
cuts tiles along K; ``FAULTS=all`` runs all of all.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import plan_launch  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.emulator.errors import EmulationError  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402

ALL = os.environ.get("FAULTS") == "all"
KERNELS = {
    "pair": ({"block_n": 32, "cluster_m": 2, "cta_group": 2, "cluster_launch_control": True},
    (530, 40, 200), 4),
    "four": ({"block_n": 32, "cluster_m": 4, "cta_group": 2}, (530, 72, 200), 4),
    "shared": ({"block_n": 32, "cluster_m": 2}, (530, 40, 200), 2),
    "dealt": (
        {"arch": 90, "block_m": 64, "block_n": 32, "cluster_m": 2, "cluster_n": 2},
        (530, 72, 328), 8,
    ),
    "parts": (
        {"arch": 90, "block_m": 64, "block_n": 32, "cluster_m": 2, "split_k": 2},
        (302, 40, 520), 9,
    ),
    "scaled": (
        {"element_type": "mxfp8", "block_k": 128, "cluster_m": 2, "cta_group": 2}, (264, 136,
         400), 2
    ),
}  # fmt: skip
# What the emulator does not see: the proxy fence between mbarrier.init and the first copy that
# signals the barrier, where Triton's own compiled kernels and CUTLASS's have none; a missing wait
# for an arrival from another block, where a later one of the same thread is waited for: the
# producer's last but one; and barriers and a wait that others make needless (a loop's first, those
# around the warps' start and end: so in "parts", which was looked at).
NEEDLESS = "no barrier of the warpgroup"
UNNOTICED = {
    "pair": {"no proxy fence": 1, NEEDLESS: 5},
    "four": {"no proxy fence": 1, NEEDLESS: 5},
    "shared": {"no proxy fence": 1, NEEDLESS: 6},
    "dealt": {"no proxy fence": 1, "no wait": 2, "the other phase": 2, NEEDLESS: 3},
    "parts": {
        "no proxy fence": 1, "no wait": 3, "the other phase": 2, "no wait for the stores": 1,
        NEEDLESS: 6,
    },
    "scaled": {"no proxy fence": 1, NEEDLESS: 5},
}  # fmt: skip
WAIT = re.compile(r"mbarrier\.try_wait\.parity\.shared::cta\.b64 complete, \[%r\d+\], (%r\d+);")


def edits(line, never):
    """What may be wrong in a line: a name, and the line as it would be.

    Args:
        never: predicates that are false.
    """
    wait = WAIT.search(line)
    if wait:
        yield "no wait", WAIT.sub("setp.eq.u32 complete, 0, 0;", line)
        other = f"{{ .reg .b32 other; xor.b32 other, {wait[1]}, 1; "
        changed = other + wait[0].replace(wait[1], "other") + " }"
        yield "the other phase", line.replace(wait[0], changed)
    if "tcgen05.commit" in line:
        yield "no commit", ""
        mask = re.search(r", (%rs\d+);", line)
        if mask:
            for what, operation in (
                ("a mask one off", f"shl.b16 wrong, {mask[1]}, 1;"),
                ("a mask of the first block alone", f"and.b16 wrong, {mask[1]}, 1;"),
            ):
                changed = line.replace(mask[1], "wrong")
                yield what, f"{{ .reg .b16 wrong; {operation} {changed} }}"
    copied_to = re.search(r"multicast::cluster.*, (%rs\d+|blocks);", line)
    if copied_to:
        changed = line.replace(f", {copied_to[1]};", ", wrong;")
        yield (
            "copied to one block less",
            f"{{ .reg .b16 wrong; sub.u16 wrong, {copied_to[1]}, 1; "
            f"and.b16 wrong, wrong, {copied_to[1]}; {changed} }}",
        )
    if re.search(r"mbarrier\.arrive\.shared", line):
        yield "no arrival", ""
    expected = re.search(r"expect_tx.*, (\d+);", line)
    if expected:
        yield "too few bytes", line.replace(expected[1], str(int(expected[1]) - 128))
        yield "too many bytes", line.replace(expected[1], str(int(expected[1]) + 128))
    count = re.search(r"mbarrier\.init.*, (\d+);", line)
    if count:
        yield "another count", line.replace(f", {count[1]};", f", {int(count[1]) + 1};")
    if "tcgen05.mma" in line:
        yield "no product", ""
        adds = re.search(r", (%p\d+);", line)
        if adds[1] in never:
            yield "added", line.replace(adds[0], ", 1;")
        else:
            yield "not added", line.replace(adds[0], ", 0;")
    scaled = re.search(r"(%r\d+), (\[[^]]+\]), (\[[^]]+\]), %p\d+;", line)
    if scaled:
        a, b = scaled[2], scaled[3]
        yield "each other's scales", line.replace(f"{a}, {b}", f"{b}, {a}")
        for name, bit in (("another scale of A", 1 << 29), ("another scale of B", 1 << 4)):
            changed = line.replace(scaled[1], "wrong")
            yield name, f"{{ .reg .b32 wrong; xor.b32 wrong, {scaled[1]}, {bit}; {changed} }}"
    copied = re.search(r"tcgen05\.cp.*, (%rd\d+);", line)
    if copied:
        yield "no copy of scales", ""
        changed = line.replace(copied[1], "wrong")
        yield (
            "scales one row on",
            f"{{ .reg .b64 wrong; add.s64 wrong, {copied[1]}, 1; {changed} }}",
        )
    order = re.search(r"atom\.(acq_rel|acquire)\.gpu", line)
    if order:
        yield "a relaxed atomic", line.replace(order[1], "relaxed")
    for name, pattern in {
        NEEDLESS: r"\tbar(rier)?\.sync",
        "no proxy fence": r"fence\.proxy\.async",
        "no wait for the sums": r"tcgen05\.wait::ld",
        "no fence of the barriers": r"fence\.mbarrier_init",
        "no copy": r"cp\.async\.bulk\.tensor",
        "no request": r"clusterlaunchcontrol\.try_cancel",
        "no barrier of the cluster": r"barrier\.cluster\.arrive",
        "no wait for the stores": r"cp\.async\.bulk\.wait_group",
    }.items():
        if re.search(pattern, line):
            yield name, ""


def faults(ptx):
    """All: the line's number, what is wrong there, and the PTX with it."""
    lines = ptx.splitlines()
    body = next(i for i, line in enumerate(lines) if ".entry" in line)
    never = set(re.findall(r"mov\.pred\s+(%p\d+), 0;", ptx))
    for number in range(body, len(lines)):
        for name, changed in edits(lines[number], never):
            yield number + 1, name, "\n".join([*lines[:number], changed, *lines[number + 1 :]])


def launch(name, monkeypatch, schedule="lazy", change=lambda ptx: ptx):
    """Whether the kernel's result is right, with its PTX changed."""
    fields, sizes, multiprocessors = KERNELS[name]
    config = kernel_spec(**{"arch": 100, "element_type": "bf16", "consumers": 1} | fields)
    a, b, extras, expected = plan_launch.problem(config, *sizes)
    with triton_ext.emulate(f"sm_{config.arch}", schedule=schedule) as gpu:
        decode = gpu.program
        monkeypatch.setattr(gpu, "program", lambda ptx: decode(change(ptx)))
        workspace = torch.zeros(1 << 20, dtype=torch.uint8)
        for _ in range(2 if config.tile.split_k > 1 else 1):  # counters are zero again
            found = plan_launch.launch(config, a, b, extras, multiprocessors, workspace)
    return torch.equal(found, expected.to(found.dtype))


def noticed(name, monkeypatch, ptx):
    """What became of the kernel with this PTX: the error's name, or that the result is wrong; in
    parts, whose blocks wait for each other, under a schedule that runs some side by side, too.
    """
    for schedule in ("lazy", "random") if name == "parts" else ("lazy",):
        try:
            if not launch(name, monkeypatch, schedule, lambda _: ptx):
                return "wrong result"
        except EmulationError as error:
            return type(error).__name__
    return None


@pytest.mark.parametrize("name", KERNELS if ALL else ["pair", "parts", "scaled"])
def test_faults_are_noticed(name, monkeypatch):
    seen = []
    assert launch(name, monkeypatch, change=lambda ptx: seen.append(ptx) or ptx)
    all_of_them = list(faults(seen[0]))
    assert len(all_of_them) >= (28 if name == "dealt" else 40)
    if name == "scaled" and not ALL:  # the others are those of a pair
        all_of_them = [each for each in all_of_them if "scale" in each[1]]
    step = 1 if ALL else len(all_of_them) // (4 if name == "scaled" else 8)
    chosen = all_of_them[::step]
    found = Counter((fault, noticed(name, monkeypatch, ptx)) for _, fault, ptx in chosen)
    print(found)
    missed = Counter({fault: number for (fault, by), number in found.items() if by is None})
    assert missed <= Counter(UNNOTICED[name])
