"""When each block of a matmul was where, on a Hopper GPU: stamps in the PTX that Triton makes.

    python -m benchmarks.stamps PLAN --json FILE [--seconds 200]    # needs a GPU

The plan is one of `benchmarks.survey`. After the instructions at which the first thread of a block
waits for the kernel before, for its first tiles, for its last products and for its stores, it
writes the time (``%globaltimer``) for each of up to 64 launches in a stream, on inputs in turn.
The kernel is the same but for that; how much longer it takes is measured as well: what is stamped
behind the wait for the kernel before is later by that much, as the launch has to be looked up.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from triton.backends.nvidia.compiler import get_ptxas

from benchmarks import harness
from benchmarks.driver import call
from benchmarks.harness import Row, Table
from benchmarks.matmul import compiled_ahead, kernel_launches, processes
from benchmarks.problems import Problem, input_sets
from benchmarks.survey import Planned, read_plan
from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.spec import KernelSpec, read_spec
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds, warm_up
from triton_ext.ptx.parse import Instruction, parse_ptx

BLOCKS, LAUNCHES = 264, 64
"""The most blocks of a launch, and launches of a replay, that leave stamps."""
TIMES = ("begin", "released", "first tiles", "last products", "last stores", "end", "SM")
"""The stamps of each block's first thread, in ns, and the number of its SM."""
WARM = 3
"""Launches of a replay before those that count."""
_RECORD = 8 * len(TIMES)
_VARIABLES = f"""\
.global .align 16 .b8 stamp_times[{LAUNCHES * BLOCKS * _RECORD}];
.global .align 16 .b32 stamp_ended;
"""
_BEGIN = f"""
.reg .b32 %stamp_x, %stamp_y;
.reg .b64 %stamp_times, %stamp_begin;
.reg .pred %stamp_mine, %stamp_first;
mov.u32 %stamp_x, %ctaid.x;
mov.u32 %stamp_y, %tid.x;
setp.eq.u32 %stamp_mine, %stamp_y, 0;
setp.lt.and.u32 %stamp_mine, %stamp_x, {BLOCKS}, %stamp_mine;
setp.ne.u32 %stamp_first, 0, 0;
mov.u64 %stamp_times, stamp_times;
mov.u64 %stamp_begin, %globaltimer;
"""
# all blocks of the launches before have ended, and not all of this one
_RELEASED = f"""
{{ .reg .b32 number, blocks; .reg .b64 now;
mov.u64 now, %globaltimer;
ld.volatile.global.u32 number, [stamp_ended];
mov.u32 blocks, %nctaid.x;
div.u32 number, number, blocks;
rem.u32 number, number, {LAUNCHES};
mov.u32 %stamp_x, %ctaid.x;
mad.lo.u32 %stamp_x, number, {BLOCKS}, %stamp_x;
mov.u64 %stamp_times, stamp_times;
mad.wide.u32 %stamp_times, %stamp_x, {_RECORD}, %stamp_times;
@%stamp_mine st.global.b64 [%stamp_times+8], now;
@%stamp_mine st.global.b64 [%stamp_times], %stamp_begin;
setp.eq.and.u32 %stamp_first, 0, 0, %stamp_mine; }}
"""
_ENDED = f"""
{{ .reg .b32 sm; .reg .b64 now;
mov.u64 now, %globaltimer;
mov.u32 sm, %smid;
@%stamp_mine st.global.b64 [%stamp_times+{8 * TIMES.index("end")}], now;
cvt.u64.u32 now, sm;
@%stamp_mine st.global.b64 [%stamp_times+{8 * TIMES.index("SM")}], now;
@%stamp_mine red.global.add.u32 [stamp_ended], 1; }}
"""


def _time(what: str, who: str = "mine") -> str:
    return f"""
{{ .reg .b64 now;
mov.u64 now, %globaltimer;
@%stamp_{who} st.global.b64 [%stamp_times+{8 * TIMES.index(what)}], now; }}
"""


def _behind(at: Instruction) -> str:
    """What is stamped behind an instruction."""
    if at.opcode == "griddepcontrol.wait":
        return _RELEASED
    if "try_wait" in at.opcode:
        return _time("first tiles", "first") + "setp.ne.u32 %stamp_first, 0, 0;\n"
    if at.opcode.startswith("wgmma.wait_group") and at.operands == ("0",):
        return _time("last products")
    if at.opcode.startswith("cp.async.bulk.wait_group"):
        return _time("last stores")
    return ""


def stamped(ptx: str) -> str:
    """A kernel with stamps: the module has two variables more.

    Args:
        ptx: of one entry, whose grid has one dimension.

    Raises:
        LayoutError: it cannot be read.
    """
    kernel = next(each for each in parse_ptx(ptx).kernels if each.is_entry)
    lines = ptx.splitlines()
    first = next(n for n, line in enumerate(lines) if ".entry" in line)
    opening = next(n for n in range(first, len(lines)) if lines[n].strip().endswith("{"))
    after = {opening: _BEGIN}
    for instruction in kernel.instructions:
        where = instruction.line - 1
        while "try_wait" in instruction.opcode and "}" not in lines[where]:  # behind its loop
            where += 1
        after[where] = _behind(instruction)
    found = []
    for number, line in enumerate(lines):
        if number == first:
            found.append(_VARIABLES)
        if re.fullmatch(r"\s*(@\S+ )?(ret|exit);.*", line):
            found.append(_ENDED)
        found.append(line)
        found.append(after.get(number, ""))
    return "\n".join(found) + "\n"


def _compiled(config: KernelSpec) -> Any:
    """Triton's compiled kernel, with stamps in it."""
    compiled = compile_matmul(config)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(stamped(compiled.asm["ptx"]))
        command = [get_ptxas(90).path, "--gpu-name=sm_90a", "--fmad=false", str(source)]
        subprocess.run([*command, "-o", str(binary)], check=True, capture_output=True)
        compiled.kernel = compiled.asm["cubin"] = binary.read_bytes()
    return compiled


class _Variable:
    """A variable in the global memory of a loaded module."""

    def __init__(self, module: int, name: str) -> None:
        self._address, self._size = ctypes.c_uint64(), ctypes.c_size_t()
        where = ctypes.byref(self._address), ctypes.byref(self._size)
        call("cuModuleGetGlobal_v2", *where, ctypes.c_void_p(module), name.encode())

    def clear(self) -> None:
        call("cuMemsetD8_v2", self._address, 0, self._size)

    def copy(self, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        found = np.empty(shape, dtype)
        to = found.ctypes.data_as(ctypes.c_void_p)
        call("cuMemcpyDtoH_v2", to, self._address, ctypes.c_size_t(found.nbytes))
        return found


def medians(times: NDArray[np.int64]) -> dict[str, float]:
    """What the stamps of launches say, in ns.

    Args:
        times: (launches, blocks, `TIMES`); launches in which a block did not write all are left
            out.

    Returns:
        "first tiles", "last products", "last stores", "end" of the median block, since it was
        released; "begin", before that; "body", from the first block's release to the last one's
        end; "gap", from there to the next launch's release; "turnover", from the end of a block
        to the begin of the next launch's on that SM. Empty if there are not two launches in a row.
    """
    ok = np.flatnonzero((times[..., [0, 1, 5]] > 0).all(axis=(1, 2)))
    ok = ok[ok >= WARM]
    pairs = [(n, n + 1) for n in ok if n + 1 in ok]
    if not pairs:
        return {}
    released, ends = times[..., 1], times[..., TIMES.index("end")]
    since = np.median(times[ok] - released[ok][..., None], axis=(0, 1))
    turnovers = []
    for one, next_one in pairs:
        last: dict[int, int] = {}
        for sm, end in zip(times[one, :, -1].tolist(), ends[one].tolist(), strict=True):
            last[sm] = max(end, last.get(sm, 0))
        starts = zip(times[next_one, :, -1].tolist(), times[next_one, :, 0].tolist(), strict=True)
        turnovers += [begin - last[sm] for sm, begin in starts if sm in last]
    found = {name: float(since[n]) for n, name in enumerate(TIMES[:-1]) if n != 1}
    found["body"] = float(np.median(ends[ok].max(axis=1) - released[ok].min(axis=1)))
    gaps = [released[after].min() - ends[before].max() for before, after in pairs]
    found["gap"] = float(np.median(gaps))
    found["turnover"] = float(np.median(turnovers)) if turnovers else float("nan")
    return found


def measure(problem: Problem, config: KernelSpec) -> Row:
    """Problem, configuration, seconds without and with stamps, blocks, and `medians`.

    Raises:
        GpuError: the driver does not give the stamps.
    """
    sets = input_sets(problem)
    count = launches_in_graph(2e-6 + max(problem.flops / 7e14, problem.bytes / 4e12), len(sets))
    kernels = {"plain": compile_matmul(config), "stamped": _compiled(config)}
    graphs = {
        name: graph_of(kernel_launches(problem, config, sets, compiled), count)
        for name, compiled in kernels.items()
    }
    warm_up(graphs, 0.05)
    rounds = replayed_seconds(graphs, 5)
    module = kernels["stamped"].module
    ended, stamps = _Variable(module, "stamp_ended"), _Variable(module, "stamp_times")
    ended.clear()
    stamps.clear()
    torch.cuda.synchronize()
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    times = stamps.copy(np.int64, (LAUNCHES, BLOCKS, len(TIMES)))
    blocks = int(np.count_nonzero(times[0, :, TIMES.index("end")]))
    row = {**problem.row, "problem": str(problem), "config": config.fields(), "blocks": blocks}
    row |= {name: statistics.median(each) / count for name, each in rounds.items()}
    return row | medians(times[: min(count, LAUNCHES), :blocks])


TABLE = Table(
    ("problem", "<28", "problem"),
    ("us", ">8.2f", lambda row: row["plain"] * 1e6),
    ("stamped", ">8.2f", lambda row: row["stamped"] * 1e6),
    *((name, ">14.0f", name) for name in ("first tiles", "last products", "end", "body", "gap")),
    ("  configuration", "", lambda row: f"  {read_spec(row['config'])}"),
)


def rows(plan: Sequence[Planned], seconds: float) -> Iterator[Row]:
    """The measured kernels, as long as there is time."""
    pool, begin = ProcessPoolExecutor(processes()), time.perf_counter()
    try:
        for problem, configs in compiled_ahead(plan, pool):
            for config in configs:
                if time.perf_counter() - begin > seconds:
                    print(f"stopped after {seconds} s")
                    return
                yield measure(problem, config)
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, default=200, help="to measure for, at most")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    found = rows(read_plan(arguments.plan), arguments.seconds)
    harness.report("stamps", found, TABLE, arguments.json)


if __name__ == "__main__":
    main()
