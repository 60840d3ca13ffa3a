"""Predicted bank conflicts beside Nsight Compute's counters, on a Hopper GPU.

    PYTHONPATH=tests/support python -m silicon.record_banks [--json FILE]  # under ncu, by itself
    PYTHONPATH=tests/support python -m silicon.record_banks --predict      # needs no GPU
    PYTHONPATH=tests/support python -m silicon.record_banks --launch       # each kernel once

Each case is a Gluon kernel of one block that stores a tile from registers to shared memory and
loads it back into other registers. What the compiler made of it, st.shared and ld.shared of some
width or stmatrix and ldmatrix, is read from the PTX, and `triton_ext.hardware.banks` says how many
wavefronts these instructions take. Exit status 1 if a counter differs.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from benchmarks.harness import environment
from triton_ext import LinearLayout, NVMMAShared, SwizzledShared
from triton_ext.compat import LAUNCH_OPTIONS, compile_gluon
from triton_ext.hardware.banks import thread_layout
from triton_ext.hardware.register_access import (
    RegisterAccess,
    register_access,
    register_matrix_access,
)
from triton_ext.layouts.triton.gluon import to_gluon

NUM_WARPS = 4
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
EXTRA_METRICS = (
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
)
"""Recorded where this ncu and GPU have them; nothing is compared with them."""
ELEMENT_TYPES = {16: "fp16", 32: "fp32"}


@gluon.jit
def exchange(
    source,
    target,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    WRITE: gl.constexpr,
    READ: gl.constexpr,
    SHARED: gl.constexpr,
):
    """Copy a tile: registers laid out as WRITE, shared memory, registers laid out as READ."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, WRITE))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, WRITE))
    tile = gl.load(source + rows[:, None] * COLUMNS + columns[None, :])
    shared = gl.allocate_shared_memory(source.dtype.element_ty, [ROWS, COLUMNS], SHARED)
    shared.store(tile)
    back = shared.load(READ)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, READ))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, READ))
    gl.store(target + rows[:, None] * COLUMNS + columns[None, :], back)


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        shared: how the tile lies in shared memory, before padding.
        write, read: which thread holds which element: ``register``, ``lane``, ``warp`` ->
            dimensions.
        paddings: as in `register_access`; with `shared` row by row.
        modelled: False where lanes share what they load, which the hardware may serve in fewer
            wavefronts than predicted; to be seen, but no failure.
    """

    name: str
    element_bitwidth: int
    shape: tuple[int, int]
    shared: NVMMAShared | SwizzledShared
    write: LinearLayout
    read: LinearLayout
    paddings: tuple[tuple[int, int], ...] = ()
    modelled: bool = True

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments."""
        shared = to_gluon(self.shared)
        if self.paddings:
            shared = gl.PaddedSharedLayout.with_identity_for(
                [list(pair) for pair in self.paddings], list(self.shape), [1, 0]
            )
        return {
            "ROWS": self.shape[0],
            "COLUMNS": self.shape[1],
            "WRITE": gluon_registers(self.write),
            "READ": gluon_registers(self.read),
            "SHARED": shared,
        }

    def predict(self, mnemonics: Sequence[str]) -> RegisterAccess:
        """The stores or the loads, given the instructions, all alike, that the compiler chose.

        Raises:
            RuntimeError: the instructions are not those that the layouts are thought to give.
        """
        if len(set(mnemonics)) != 1:
            raise RuntimeError(f"{self.name}: not one kind of instruction: {sorted(mnemonics)}")
        mnemonic = mnemonics[0]
        registers = self.write if mnemonic.startswith("st") else self.read
        shared = self.shared.to_linear_layout(self.shape)
        if "matrix" in mnemonic:
            access = register_matrix_access(
                registers, shared, self.element_bitwidth, trans=".trans" in mnemonic
            )
        else:
            access = register_access(
                registers, shared, self.element_bitwidth, paddings=self.paddings
            )
            if instruction_bytes(mnemonic) != access.access_bytes:
                raise RuntimeError(
                    f"{self.name}: {mnemonic}, where {access.access_bytes} bytes were expected"
                )
        if len(mnemonics) * NUM_WARPS != len(access.requests):
            raise RuntimeError(
                f"{self.name}: {len(mnemonics)} {mnemonic} in {NUM_WARPS} warps, where"
                f" {len(access.requests)} requests were expected"
            )
        return access


def gluon_registers(registers: LinearLayout) -> Any:
    """The Gluon layout of a tensor in registers."""
    bases = {name: [list(basis) for basis in own] for name, own in registers.bases.items()}
    return gl.DistributedLinearLayout(
        bases["register"], bases["lane"], bases["warp"], [], list(registers.out_dims.values())
    )


def fragment_layout(shape: tuple[int, int], element_bitwidth: int) -> LinearLayout:
    """The accumulator fragments of mma.m16n8: 16 rows a warp, 4 lanes for 8 columns.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" (for C and D); seed 003, Sec. 2.1.
    Elements of 32 bits are one a register, so a lane's pair of columns becomes one.
    """
    pair = [(0, 1 << bit) for bit in range((32 // element_bitwidth).bit_length() - 1)]
    quad = [(0, 32 // element_bitwidth << bit) for bit in range(2)]
    columns = 128 // element_bitwidth
    further = [(0, columns << bit) for bit in range((shape[1] // columns).bit_length() - 1)]
    return LinearLayout(
        {
            "register": [*pair, (8, 0), *further],
            "lane": [*quad, (1, 0), (2, 0), (4, 0)],
            "warp": [(16, 0), (32, 0)],
        },
        {"dim0": shape[0], "dim1": shape[1]},
    )


def sharing_layout(shape: tuple[int, int], element_bitwidth: int, width: int) -> LinearLayout:
    """Rows of threads in which each two neighbouring lanes hold the same `width` bytes."""
    rows = thread_layout(shape, element_bitwidth, width, NUM_WARPS)
    bases = rows.bases
    lanes = [(0, 0), *bases["lane"][:-1]]
    registers = [*bases["register"], bases["lane"][-1]]
    return LinearLayout({**bases, "register": registers, "lane": lanes}, rows.out_dims)


def cases() -> list[Case]:
    """Row-major, swizzled and padded tiles; accesses of 2 to 16 bytes and of matrices."""
    half, single = (64, 64), (64, 32)  # rows of 128 bytes
    row_major = SwizzledShared(1, 1, 1, (1, 0))
    fragments = fragment_layout(half, 16)
    rows16, rows8 = (thread_layout(half, 16, width, NUM_WARPS) for width in (16, 8))
    # One element a lane, the lanes of a warp in 32 rows below each other.
    columns = thread_layout(half, 16, 2, NUM_WARPS, contiguous_dim=0)
    found = []
    tiles: dict[str, tuple[NVMMAShared | SwizzledShared, tuple[tuple[int, int], ...]]] = {
        "row-major": (row_major, ()),
        "nvmma-32": (NVMMAShared(32, 16), ()),
        "nvmma-64": (NVMMAShared(64, 16), ()),
        "nvmma-128": (NVMMAShared(128, 16), ()),
        "padded-16B": (row_major, ((64, 8),)),
    }
    for name, (shared, paddings) in tiles.items():
        for how, write, read in (
            ("rows of 16 B -> fragments", rows16, fragments),
            ("fragments -> rows of 16 B", fragments, rows16),
            ("rows of 8 B -> columns", rows8, columns),
            ("columns -> rows of 8 B", columns, rows8),
        ):
            found.append(Case(f"fp16 {name}: {how}", 16, half, shared, write, read, paddings))
    # Rows differ by a whole line and within a word: Triton's own count takes half of them for one.
    halves = SwizzledShared(1, 1, 2, (1, 0))
    found.append(
        Case("fp16 swizzled by 2 B: columns -> columns", 16, half, halves, columns, columns)
    )
    columns16 = thread_layout(half, 16, 16, NUM_WARPS, contiguous_dim=0)
    transposed = NVMMAShared(128, 16, transposed=True)
    found.append(
        Case("fp16 nvmma-128 transposed: columns of 16 B -> fragments", 16, half, transposed,
             columns16, fragments)
    )  # fmt: skip
    rows16, rows8, rows4 = (thread_layout(single, 32, width, NUM_WARPS) for width in (16, 8, 4))
    columns = thread_layout(single, 32, 4, NUM_WARPS, contiguous_dim=0)
    swizzled = NVMMAShared(128, 32)
    for name, shared in (("row-major", row_major), ("nvmma-128", swizzled)):
        for how, write, read in (
            ("columns -> rows", columns, rows4),
            ("columns -> columns", columns, columns),
            ("rows of 16 B -> rows of 8 B", rows16, rows8),
        ):
            found.append(Case(f"fp32 {name}: {how}", 32, single, shared, write, read))
    found.append(
        Case("fp32 padded-4B: columns -> rows", 32, single, row_major, columns, rows4, ((32, 1),))
    )
    for width in (4, 8, 16):
        pairs = sharing_layout(single, 32, width)
        found.append(
            Case(f"fp32 row-major: rows of 16 B -> {width} B, by pairs of lanes", 32, single,
                 row_major, rows16, pairs, modelled=False)
        )  # fmt: skip
    return found


SHARED_INSTRUCTION = re.compile(
    r"^\s*(?:@\S+\s+)?((?:ld|st)(?:\.shared|matrix\.sync)[.\w:]*)", re.MULTILINE
)


def shared_instructions(ptx: str) -> dict[str, list[str]]:
    """The instructions of a kernel that access shared memory: "st" and "ld", in order."""
    found: dict[str, list[str]] = {"st": [], "ld": []}
    for mnemonic in SHARED_INSTRUCTION.findall(ptx):
        found[mnemonic[:2]].append(mnemonic)
    return found


def instruction_bytes(mnemonic: str) -> int:
    """How many bytes a lane accesses with an ld.shared or st.shared."""
    elements = re.search(r"\.v(\d)", mnemonic)
    bits = re.search(r"\.[bfus](\d+)$", mnemonic)
    assert bits, mnemonic
    return int(bits[1]) // 8 * (int(elements[1]) if elements else 1)


def instruction_name(mnemonic: str) -> str:
    """What the machine sees of an instruction: .v2.b32 and .v4.b16 are the same."""
    if "matrix" in mnemonic:
        count = re.search(r"\.x\d", mnemonic)
        return mnemonic[:8] + (count[0] if count else "") + ".trans" * (".trans" in mnemonic)
    return f"{mnemonic[:9]} {instruction_bytes(mnemonic)} B"


def predictions() -> list[dict[str, Any]]:
    """What each case compiles to, and the wavefronts that it takes; for its one block."""
    rows = []
    for case in cases():
        constants = case.constants()
        pointer = f"*{ELEMENT_TYPES[case.element_bitwidth]}"
        signature = {"source": pointer, "target": pointer} | dict.fromkeys(constants, "constexpr")
        kernel = compile_gluon(exchange, signature, constants, arch=90, num_warps=NUM_WARPS)
        instructions = shared_instructions(kernel.asm["ptx"])
        row: dict[str, Any] = {"case": case.name, "modelled": case.modelled}
        for side in ("st", "ld"):
            access = case.predict(instructions[side])
            row[side] = {
                "instruction": instruction_name(instructions[side][0]),
                "requests": len(access.requests),
                "wavefronts": access.wavefronts,
                "ideal_wavefronts": access.ideal_wavefronts,
                "wavefronts_per_request": access.wavefronts / len(access.requests),
            }
        rows.append(row)
    return rows


def launch() -> None:
    """Run each case once, and check that it copied its tile with the predicted instructions."""
    import torch

    expected = predictions()
    for case, row in zip(cases(), expected, strict=True):
        dtype = {16: torch.float16, 32: torch.float32}[case.element_bitwidth]
        source = torch.arange(case.shape[0] * case.shape[1], dtype=torch.float32)
        source = (source % 2048).to(dtype).reshape(case.shape).cuda()
        target = torch.zeros_like(source)
        kernel = exchange[(1,)](
            source, target, **case.constants(), num_warps=NUM_WARPS, **LAUNCH_OPTIONS
        )
        if not torch.equal(source, target):
            raise RuntimeError(f"{case.name}: the tile was not copied")
        found = shared_instructions(kernel.asm["ptx"])
        for side in ("st", "ld"):
            issued = Counter(map(instruction_name, found[side]))
            if issued != {row[side]["instruction"]: row[side]["requests"] // NUM_WARPS}:
                raise RuntimeError(f"{case.name}: compiled to {dict(issued)}, not as predicted")


def find_ncu() -> str:
    """Nsight Compute's command line: on the PATH, or with the CUDA toolkit."""
    candidates = [shutil.which("ncu"), *map(str, sorted(Path("/usr/local").glob("cuda*/bin/ncu")))]
    candidates += map(str, sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu")))
    for path in filter(None, candidates):
        return path
    raise SystemExit("ncu (Nsight Compute) was not found; put it on the PATH")


def available(ncu: str, metrics: Sequence[str]) -> list[str]:
    """Those of `metrics` that ncu lists for this GPU; an ncu that lists nothing has none."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True).stdout
    names = {line.split()[0] for line in listed.splitlines() if line.strip()}
    return [metric for metric in metrics if metric.removesuffix(".sum") in names]


def measure() -> list[dict[str, float]]:
    """The counters of each case, in order: one profiled run of `launch`."""
    ncu = find_ncu()
    metrics = [form.format(side) for form in (WAVEFRONTS, CONFLICTS) for side in ("st", "ld")]
    metrics += available(ncu, EXTRA_METRICS)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            ncu, "--csv", "--log-file", str(log), "--print-units", "base",
            "--target-processes", "all", "--clock-control", "none",
            "--kernel-name", "regex:exchange", "--metrics", ",".join(metrics),
            sys.executable, "-m", "silicon.record_banks", "--launch",
        ]  # fmt: skip
        finished = subprocess.run(command, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    if finished.returncode:
        raise SystemExit(
            f"ncu ended with status {finished.returncode}:\n{text[-2000:]}\n"
            f"{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"
        )
    counters = parse_counters(text)
    if not counters:
        raise SystemExit(f"ncu profiled nothing:\n{text[-2000:]}\n{finished.stderr[-2000:]}")
    return counters


def parse_counters(text: str) -> list[dict[str, float]]:
    """The counters of each kernel launch, from what ``ncu --csv --metrics`` prints: a row each."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(table):
        counters = launches.setdefault(row["ID"], {})
        if row["Metric Value"] != "n/a":
            counters[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [launches[number] for number in sorted(launches, key=int)]


def compare(
    expected: Sequence[dict[str, Any]], counters: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    """Each prediction with the counters of its launch, and whether they agree."""
    if len(expected) != len(counters):
        raise SystemExit(f"{len(expected)} kernels were launched, ncu profiled {len(counters)}")
    rows = []
    for row, found in zip(expected, counters, strict=True):
        row = {**row, "counters": found, "agrees": True}
        for side in ("st", "ld"):
            names = WAVEFRONTS.format(side), CONFLICTS.format(side)
            if not set(names) <= set(found):
                raise SystemExit(f"{row['case']}: ncu counted only {sorted(found)}")
            wavefronts, conflicts = (found[name] for name in names)
            row[side] = {
                **row[side],
                "measured_wavefronts": wavefronts,
                "measured_conflicts": conflicts,
            }
            beyond = row[side]["wavefronts"] - row[side]["ideal_wavefronts"]
            row["agrees"] &= (wavefronts, conflicts) == (row[side]["wavefronts"], beyond)
        rows.append(row)
    return rows


def lines_of(row: dict[str, Any]) -> str:
    """A case as it is printed: the verdict, then the stores and the loads."""
    verdict = "ok" if row["agrees"] else "DIFFERS" if row["modelled"] else "differs, not modelled"
    lines = [f"{verdict}: {row['case']}"]
    for side in ("st", "ld"):
        own = row[side]
        lines.append(
            f"{own['requests']:8}{own['ideal_wavefronts']:7}{own['wavefronts']:11}"
            f"{own['measured_wavefronts']:10.0f}{own['measured_conflicts']:11.0f}"
            f"  {own['instruction']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record here")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--predict", action="store_true", help="print the predictions as JSON")
    mode.add_argument("--launch", action="store_true", help="run the kernels, without ncu")
    arguments = parser.parse_args()
    if arguments.launch:
        launch()
        return
    expected = predictions()
    if arguments.predict:
        print(json.dumps(expected, indent=2))
        return
    rows = compare(expected, measure())
    print("requests  ideal  predicted  measured  conflicts")
    print("\n".join(map(lines_of, rows)))
    if arguments.json:
        record = {
            "command": "PYTHONPATH=tests/support python -m silicon.record_banks",
            "date": datetime.date.today().isoformat(),
            "environment": environment(),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not all(row["agrees"] for row in rows if row["modelled"]))


if __name__ == "__main__":
    main()
