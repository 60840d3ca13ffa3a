# mypy: disallow-untyped-calls=False
"""When each warp of a matmul was where, on a Hopper GPU: stamps in the PTX that Triton makes.

    python -m benchmarks.stamps measure PLAN --npz FILE [--seconds 200]    # needs a GPU
    python -m benchmarks.stamps compare FILE [--gpu H100] [--json FILE]    # anywhere

After each instruction at which a warp may wait, copies something or signals, the first thread of
the warp writes which instruction it was, and the clock of its SM. The kernel is the same but for
that; how much longer it takes is measured as well. A launch is one of many in a stream, each on
other inputs.

``compare`` predicts the timeline of the same kernels, and puts beside each other, for each kind of
step of a warp (from one instruction with a stamp to the next), how long it took and was predicted
to take: the sums over a block, in cycles.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from triton.backends.nvidia.compiler import get_ptxas

from benchmarks.harness import Row
from benchmarks.matmul import INPUT_BYTES, compiled_ahead, kernel_launches, processes
from benchmarks.problems import Problem, inputs
from benchmarks.replay import graph_of, launches_in_graph, replayed_seconds, warm_up
from benchmarks.survey import Planned, described, read_plan
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import compile_matmul
from triton_ext.ptx.parse import parse_ptx

WARPS, EVENTS, BLOCKS = 16, 512, 264
"""Of a block at most, of a warp, and of a launch; what is more leaves no stamps."""
LAUNCHES = 64
TIMES = ("begin", "released", "first loads", "last products", "last stores", "end", "SM")
"""Of the first thread of each block, in ns: when it began; might go on after the kernel before; had
its first tiles; its last products; what it waits for of its stores; and ended."""
STAMPED = re.compile(
    r"mbarrier\.(try_wait|arrive)|wgmma\.(commit_group|wait_group)|cp\.async\.bulk\.(tensor|wait)"
    r"|bar(rier)?\.(sync|cluster)|griddepcontrol|(cp\.)?red\.|atom"
)
BEGIN, END = 0, 0xFFFF
"""Numbers of the stamps of a warp's first and last instruction; others are lines of the PTX."""
_DECLARATIONS = f"""\
.global .align 16 .b8 stamp_events[{BLOCKS * WARPS * EVENTS * 8}];
.global .align 16 .b8 stamp_times[{LAUNCHES * BLOCKS * len(TIMES) * 8}];
.global .align 16 .b32 stamp_ended;
"""
_BEGIN = f"""
.reg .b32 %stamp_at, %stamp_x, %stamp_y;
.reg .b64 %stamp_to, %stamp_times, %stamp_begin;
.reg .pred %stamp_p, %stamp_q, %stamp_f;
mov.u32 %stamp_x, %ctaid.x;
mov.u32 %stamp_y, %tid.x;
setp.eq.u32 %stamp_q, %stamp_y, 0;
setp.lt.and.u32 %stamp_q, %stamp_x, {BLOCKS}, %stamp_q;
mov.u64 %stamp_times, stamp_times;
mov.u64 %stamp_begin, %globaltimer;
setp.ne.and.u32 %stamp_f, 0, 0, %stamp_q;
"""
_BEGIN_EVENTS = f"""
shr.u32 %stamp_y, %stamp_y, 5;
mad.lo.u32 %stamp_y, %stamp_x, {WARPS}, %stamp_y;
mov.u64 %stamp_to, stamp_events;
mad.wide.u32 %stamp_to, %stamp_y, {EVENTS * 8}, %stamp_to;
mov.u32 %stamp_at, 0;
mov.u32 %stamp_y, %laneid;
setp.ne.u32 %stamp_p, %stamp_y, 0;
setp.ge.or.u32 %stamp_p, %stamp_x, {BLOCKS}, %stamp_p;
@%stamp_p mov.u32 %stamp_at, {EVENTS * 8};
"""
_RELEASED = f"""
{{ .reg .b32 number, blocks; .reg .b64 now;
mov.u64 now, %globaltimer;
ld.volatile.global.u32 number, [stamp_ended];
mov.u32 blocks, %nctaid.x;
div.u32 number, number, blocks;
rem.u32 number, number, {LAUNCHES};
mul.lo.u32 number, number, {BLOCKS};
mov.u32 %stamp_x, %ctaid.x;
add.u32 %stamp_x, number, %stamp_x;
mov.u64 %stamp_times, stamp_times;
mad.wide.u32 %stamp_times, %stamp_x, {len(TIMES) * 8}, %stamp_times;
@%stamp_q st.global.b64 [%stamp_times+8], now;
@%stamp_q st.global.b64 [%stamp_times], %stamp_begin;
setp.eq.and.u32 %stamp_f, 0, 0, %stamp_q; }}
"""
_ENDED = f"""
{{ .reg .b32 sm; .reg .b64 now;
mov.u64 now, %globaltimer;
mov.u32 sm, %smid;
@%stamp_q st.global.b64 [%stamp_times+{8 * (len(TIMES) - 2)}], now;
cvt.u64.u32 now, sm;
@%stamp_q st.global.b64 [%stamp_times+{8 * (len(TIMES) - 1)}], now;
@%stamp_q red.global.add.u32 [stamp_ended], 1; }}
"""


_NO_MORE = "setp.ne.u32 %stamp_f, 0, 0;\n"


def _stamp(number: int) -> str:
    return f"""
{{ .reg .b32 now; .reg .b64 to;
mov.u32 now, %clock;
cvt.u64.u32 to, %stamp_at;
add.u64 to, to, %stamp_to;
setp.lt.u32 %stamp_p, %stamp_at, {EVENTS * 8};
@%stamp_p st.global.v2.b32 [to], {{{number}, now}};
add.u32 %stamp_at, %stamp_at, 8; }}
"""


def _time(place: int) -> str:
    return f"""
{{ .reg .b64 now;
mov.u64 now, %globaltimer;
@%stamp_q st.global.b64 [%stamp_times+{8 * place}], now; }}
"""


def stamped(ptx: str, events: bool) -> str:
    """The kernel with stamps.

    Args:
        events: of all warps, too.

    Raises:
        LayoutError: the PTX cannot be read.
    """
    kernel = next(each for each in parse_ptx(ptx).kernels if each.is_entry)
    lines = ptx.splitlines()
    after: dict[int, str] = {}
    for instruction in kernel.instructions:
        code, opcode = "", instruction.opcode
        if opcode == "griddepcontrol.wait":
            code += _RELEASED
        elif "try_wait" in opcode:
            code += _time(2).replace("@%stamp_q", "@%stamp_f") + _NO_MORE
        elif opcode.startswith("wgmma.wait_group") and instruction.operands == ("0",):
            code += _time(3)
        elif opcode.startswith("cp.async.bulk.wait_group"):
            code += _time(4)
        if events and STAMPED.match(opcode):
            code += _stamp(instruction.line)
        if code:
            where = instruction.line - 1
            while "try_wait" in opcode and "}" not in lines[where]:  # its loop
                where += 1
            after[where] = code
    first = next(n for n, line in enumerate(lines) if ".entry" in line)
    opening = next(n for n in range(first, len(lines)) if lines[n].strip().endswith("{"))
    after[opening] = _BEGIN + (_BEGIN_EVENTS + _stamp(BEGIN)) * events
    found = []
    for number, line in enumerate(lines):
        if re.fullmatch(r"\s*(@\S+ )?(ret|exit);.*", line):
            found.append(_stamp(END) * events + _ENDED)
        found.append(line)
        if number in after:
            found.append(after[number])
    found.insert(first, _DECLARATIONS)
    return "\n".join(found) + "\n"


def _compiled(config: MatmulConfig, events: bool) -> Any:
    """Triton's compiled kernel, with stamps in it."""
    compiled = compile_matmul(config)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(stamped(compiled.asm["ptx"], events))
        subprocess.run(
            [get_ptxas(90).path, "--gpu-name=sm_90a", "--fmad=false", source, "-o", binary],
            check=True, capture_output=True,
        )  # fmt: skip
        compiled.kernel = compiled.asm["cubin"] = binary.read_bytes()
    return compiled


def _global(module: int, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """A copy of a variable in a module's global memory."""
    driver = ctypes.CDLL("libcuda.so.1")
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    found = np.empty(shape, dtype)
    for error in (
        driver.cuModuleGetGlobal_v2(
            ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module), name.encode()
        ),
        driver.cuMemcpyDtoH_v2(found.ctypes.data_as(ctypes.c_void_p), address, found.nbytes),
    ):
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")
    return found


def _zero(module: int, name: str) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver.cuModuleGetGlobal_v2(
        ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module), name.encode()
    )
    driver.cuMemsetD8_v2(address, 0, size)


def measure(problem: Problem, config: MatmulConfig, events: bool) -> tuple[Row, dict[str, Any]]:
    """Seconds without stamps and with them, and the stamps of launches.

    Returns:
        The row; "times" (launches, blocks, `TIMES`), ns; and, if asked for, "events" (blocks,
        warps, events, 2) of the last launch: numbers of stamps, and clocks, zeros where there is
        none; of the blocks "some".
    """
    sets = [inputs(problem) for _ in range(max(2, min(24, math.ceil(INPUT_BYTES / problem.bytes))))]
    count = launches_in_graph(2e-6 + max(problem.flops / 7e14, problem.bytes / 4e12), len(sets))
    plain, with_stamps = compile_matmul(config), _compiled(config, events)
    graphs = {
        name: graph_of(kernel_launches(problem, config, sets, compiled), count)
        for name, compiled in (("plain", plain), ("stamped", with_stamps))
    }
    warm_up(graphs, 0.05)
    rounds = replayed_seconds(graphs, 5)
    module = with_stamps.module
    _zero(module, "stamp_ended")
    _zero(module, "stamp_times")
    torch.cuda.synchronize()
    graphs["plain"].replay()
    graphs["stamped"].replay()
    torch.cuda.synchronize()
    times = _global(module, "stamp_times", np.uint64, (LAUNCHES, BLOCKS, len(TIMES)))
    seconds = {name: statistics.median(each) / count for name, each in rounds.items()}
    blocks = int(np.count_nonzero(times[0, :, -2]))
    row = {**problem.row, "problem": str(problem), "config": described(config), **seconds}
    row |= {"blocks": blocks, "launches": count}
    found: dict[str, Any] = {"times": times[: min(count, LAUNCHES), :blocks]}
    if events:
        every = _global(module, "stamp_events", np.uint32, (BLOCKS, WARPS, EVENTS, 2))
        some = np.arange(min(blocks, 8))
        longest = int(np.count_nonzero(every[..., 0], axis=2).max()) + 1
        used = int(np.count_nonzero(every[some, :, 0, 1].any(axis=0)))
        found |= {"some": some, "events": every[some, :used, :longest]}
    return row, found


def measured(plan: Sequence[Planned], seconds: float, path: Path, events: bool) -> None:
    """Write what was measured: rows as JSON, and arrays."""
    pool, begin = ProcessPoolExecutor(processes()), time.perf_counter()
    rows: list[Row] = []
    arrays: dict[str, NDArray[Any]] = {}
    for problem, configs in compiled_ahead(plan, pool):
        for config in configs:
            if time.perf_counter() - begin > seconds:
                print(f"stopped after {seconds} s: {len(rows)} kernels")
                break
            try:
                row, found = measure(problem, config, events)
            except Exception as error:  # one that does not run should not cost the others
                print(f"{problem}, {config.words}: {type(error).__name__}: {str(error)[:200]}")
                continue
            arrays |= {f"{name}{len(rows)}": each for name, each in found.items()}
            rows.append(row)
            print(f"{problem}, {config.words}: {row['plain'] * 1e6:.2f} {row['stamped'] * 1e6:.2f}")
    pool.shutdown(cancel_futures=True)
    np.savez_compressed(path, rows=np.array(json.dumps(rows)), **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("measure", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--npz", type=Path)
    parser.add_argument("--events", action="store_true", help="of all warps")
    parser.add_argument("--seconds", type=float, default=200)
    arguments = parser.parse_args()
    if arguments.step == "measure":
        torch.manual_seed(0)
        measured(read_plan(arguments.file), arguments.seconds, arguments.npz, arguments.events)


if __name__ == "__main__":
    main()
