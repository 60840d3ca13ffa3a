"""Seeded synchronization bugs: what is between two accesses is left out, or is the wrong one.

`seeds` makes them from the PTX of a kernel that is right: a wait is dropped, or waits for the other
phase; a fence, a barrier, a commit, an arrival is left out; a count is another one; a stage is
freed too early. `verdicts` runs each under all three schedules.

``python tests/support/sync_faults.py [--seed N] [--each N] [--only PART]`` seeds the kernels of
`KERNELS`, and those of NVIDIA's CuTe DSL where it is installed; with ``--tutorials FOLDER``, those
of Triton's Gluon tutorials that lie there, instead. It prints a table by kind.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from ptx_faults import Launched, capture, or_nothing
from ptx_mutations import Mutation, Mutator

from triton_ext.ptx.definitions import destinations, mentioned
from triton_ext.ptx.forms import read
from triton_ext.ptx.parse import Instruction

SCHEDULES = ("eager", "lazy", "random")

# --------------------------------------------------------------------------------- the seeds

DROPPED = {
    "proxy fence": ("fence.proxy.async",),
    "fence.mbarrier_init": ("fence.mbarrier_init",),
    "bar.sync": ("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync"),
    "bar.warp.sync": ("bar.warp.sync", "barrier.warp.sync"),
    "arrival": ("mbarrier.arrive", "cp.async.mbarrier.arrive", "tcgen05.commit"),
    "tcgen05.wait::ld": ("tcgen05.wait::ld",),
    "tcgen05.wait::st": ("tcgen05.wait::st",),
    "tcgen05.fence": ("tcgen05.fence",),
    "wgmma.fence": ("wgmma.fence",),
    "cluster wait": ("barrier.cluster.wait",),
    "commit_group": ("wgmma.commit_group", "cp.async.commit_group", "cp.async.bulk.commit_group"),
    "wgmma.wait_group": ("wgmma.wait_group",),
    "cp.async.wait_group": ("cp.async.wait_group", "cp.async.wait_all"),
    "cp.async.bulk.wait_group": ("cp.async.bulk.wait_group",),
}
"""What is left out, by the kind of the seed."""
USES = ("tcgen05.mma", "wgmma.wait_group", "ld.shared", "ldmatrix", "tcgen05.ld", "tcgen05.wait",
        "tcgen05.cp")  # fmt: skip
"""The last use of a stage, before it is freed."""
_GROUPS_LEFT = re.compile(r"(\d+)\s*;$")


def seeds(ptx: str, name: str = "") -> Iterator[Mutation]:
    """Every seed of a PTX module, or of the kernel of that name, in the order of the text."""
    mutator = Mutator(ptx, name=name)
    instructions = mutator.kernel.instructions
    for number, each in enumerate(instructions):
        span = mutator.span(each)
        if span is None:
            continue
        for kind, text in _changes(each, ptx[slice(*span)]):
            yield Mutation(kind, each.line, each.opcode, *span, text)
        last = _last_use(mutator, number)
        if last is not None:
            text = f"{ptx[slice(*span)]}\n\t{ptx[last : span[0]]}"
            yield Mutation("stage freed early", each.line, each.opcode, last, span[1], text)


def _changes(each: Instruction, text: str) -> Iterator[tuple[str, str]]:
    guard, rest = text.split(each.opcode, 1)
    opcode, operands = each.opcode, each.operands
    for kind, opcodes in DROPPED.items():
        if opcode.startswith(opcodes):
            yield f"{kind} dropped", ""
    if opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
        yield "mbarrier wait dropped", f"{guard}setp.eq.u32 {operands[0]}, 0, 0;"
        if ".parity" in opcode:
            flipped = f"%flipped{each.line}"
            wait = f"{opcode} {', '.join((*operands[:2], flipped, *operands[3:]))};"
            yield (
                "wrong phase",
                f"{{ .reg .b32 {flipped}; xor.b32 {flipped}, {operands[2]}, 1; {guard}{wait} }}",
            )
            constant = f"{opcode} {', '.join((*operands[:2], '0', *operands[3:]))};"
            yield "constant phase", f"{guard}{constant}"
    elif opcode.startswith("tcgen05.commit"):
        yield "commit doubled", f"{text}\n\t{text}"
    elif opcode.startswith("mbarrier.init"):
        if operands[1].isdecimal():
            yield "arrival count", f"{guard}{opcode} {operands[0]}, {int(operands[1]) + 1};"
        else:
            yield "arrival count", _changed(each, guard, operands[1], "add.u32", 1)
    elif ".expect_tx" in opcode:
        yield "byte count", _changed(each, guard, operands[-1], "sub.u32", 512)
    if ".multicast::cluster" in opcode:
        yield "multicast mask", _changed(each, guard, read(each).operand("cta_mask"), "xor.b16", 1)
    left = _GROUPS_LEFT.search(rest)
    if ".wait_group" in opcode and left:
        more = rest[: left.start()] + f"{int(left[1]) + 1};"
        yield "wait_group one too many", f"{guard}{opcode}{more}"


def _changed(each: Instruction, guard: str, operand: str, operation: str, by: int) -> str:
    """An instruction, one of whose operands an operation changes before."""
    other, kind = f"%other{each.line}", f"b{operation[-2:]}"
    operands = (other if text == operand else text for text in each.operands)
    computed = f"{operation} {other}, {operand}, {by};"
    return f"{{ .reg .{kind} {other}; {computed} {guard}{each.opcode} {', '.join(operands)}; }}"


def _last_use(mutator: Mutator, number: int) -> int | None:
    """Where the use of a stage begins that an arrival can be put before; None if it cannot."""
    arrival = mutator.kernel.instructions[number]
    frees = arrival.opcode.startswith(("mbarrier.arrive", "tcgen05.commit"))
    if not frees or ".expect_tx" in arrival.opcode:
        return None
    begin = mutator.span(arrival)
    for before in range(number - 1, -1, -1):
        each = mutator.kernel.instructions[before]
        span = mutator.span(each)
        written = {name for _, name in destinations(each)}
        stop = each.opcode.startswith(("bra", "brx", "ret", "exit"))
        if span is None or stop or written & set(mentioned(arrival)):
            return None
        between = mutator.ptx[span[1] : begin[0]] if begin else ""
        if re.search(r"^\s*[$\w]+:", between, re.MULTILINE):
            return None
        if each.opcode.startswith(USES):
            return span[0]
    return None


def chosen(ptx: str, reached: set[int], each: int, seed: int, name: str = "") -> list[Mutation]:
    """So many seeds of each kind, of instructions that are executed."""
    found: dict[str, list[Mutation]] = {}
    for mutation in seeds(ptx, name):
        if mutation.line in reached:
            found.setdefault(mutation.kind, []).append(mutation)
    random_ = random.Random(seed)
    return [
        mutation
        for those in found.values()
        for mutation in sorted(random_.sample(those, min(each, len(those))), key=lambda m: m.line)
    ]


# -------------------------------------------------------------------------------- the judge


def reached(launched: Launched) -> set[int]:
    """The lines of the PTX that a launch executes."""
    machine = launched.run(launched.ptx, "eager")
    steps = machine.program.kernel.instructions
    return {each.line for each, count in zip(steps, machine.counts, strict=True) if count}


def verdicts(launched: Launched, mutation: Mutation) -> list[str]:
    """By schedule: what the emulator says, "silent", or "another result"."""
    found = []
    for schedule in SCHEDULES:
        if schedule not in launched.results:
            launched.results[schedule] = launched.outcome(launched.ptx, schedule, 120)
            if ":" in launched.results[schedule]:
                raise RuntimeError(f"{launched.name}: {launched.results[schedule]}")
        text = launched.outcome(mutation.of(launched.ptx), schedule, 60)
        if text.startswith("UnsupportedInstruction"):
            raise RuntimeError(f"{launched.name}, {mutation}: no kernel: {text}")
        if ":" not in text:
            text = "silent" if text == launched.results[schedule] else "another result"
        found.append(text)
    return found


REDUNDANT = {
    "bar.sync dropped": "another barrier follows before anyone writes what was read, or reads what "
    "was written; or the threads had wgmma.wait_group of one warpgroup between",
    "bar.warp.sync dropped": "it stands before elect.sync, and no lane reads what another wrote",
    "cluster wait dropped": "other warps of the block wait there, and its end or a barrier follows",
    "fence.mbarrier_init dropped": "an arrival with release, or a later fence, follows",
    "proxy fence dropped": "it stands between mbarrier.init and the first copy, where Triton's "
    "compiled kernels have none",
    "tcgen05.wait::ld dropped": "the thread has stored the values before anything could follow",
    "arrival dropped": "the last phase, for which nobody waits",
    "mbarrier wait dropped": "the first wait for a stage that is empty, or a phase that another "
    "wait implies",
    "stage freed early": "the last phase, for which nobody waits",
    "wait_group one too many": "the group that may be left has no copies, or nobody reads them",
}
"""Kinds of which some seeds change nothing that the memory model orders: why."""


BY_LUCK = ("commit doubled", "constant phase")
"""Kinds that one schedule finds and another one does not: what one run says of all must find them.
A constant phase changes nothing where a wait always asks for that one."""


def outcome_of(told: list[str]) -> str:
    """All three in a word: "found", "some", "silent", "wrong"."""
    if "another result" in told:
        return "wrong"
    silent = told.count("silent")
    return {0: "found", len(told): "silent"}.get(silent, "some")


def missed(fault: dict[str, Any]) -> bool:
    """Whether a seed is found by luck alone, or makes a result wrong in silence, or is silent and
    of a kind that must be found.

    In the other phase, a wait that another one implies may wait for ever, or not wait: luck, but of
    what changes nothing.
    """
    outcome = outcome_of(fault["told"])
    if outcome != "silent" and fault["all"] == "proven":
        return True
    if fault["kind"] in BY_LUCK:
        return False
    if fault["kind"] == "wrong phase" and outcome == "some":
        return not all(told.startswith(("silent", "Deadlock")) for told in fault["told"])
    return outcome in ("some", "wrong") or (outcome == "silent" and fault["kind"] not in REDUNDANT)


# ------------------------------------------------------------------------------ the kernels


def _matmul(arch: int, **config: Any) -> dict[str, Any]:
    name = "-".join(f"{key}={value}" for key, value in config.items())
    return {"name": f"matmul-sm{arch}-{name}", "arch": arch, "do": "matmul", "config": config,
            "multiprocessors": max(2, config.get("cluster", 1))}  # fmt: skip


def _kernel(module: str, kernel: str, on: int, /, **arguments: Any) -> dict[str, Any]:
    return {
        "name": f"{kernel}-sm{on}", "arch": on, "do": "kernel", "module": module,
        "kernel": kernel, "arguments": arguments,
    }  # fmt: skip


GLUON, TL = "corpus_gluon_kernels", "corpus_kernels"
_SMALL = {"element_type": "fp16", "block_n": 64, "stages": 2, "consumers": 1}
KERNELS = [
    _matmul(90, **_SMALL, block_m=64),
    _matmul(90, **_SMALL | {"consumers": 2}, block_m=128, cluster_m=2),
    _matmul(90, **_SMALL, block_m=128, split_k=4),
    _matmul(100, **_SMALL),
    _matmul(100, **_SMALL, cluster_m=2, cta_group=2, c_parts=2),
    _matmul(100, **_SMALL, cluster_m=4),
    _kernel(GLUON, "warp_specialized", 90, arch=90),
    _kernel(GLUON, "warp_specialized", 100, arch=100),
    _kernel(GLUON, "attention", 90, arch=90, p="registers"),
    _kernel(GLUON, "attention", 100, arch=100, p="shared"),
    _kernel(GLUON, "pair_matmul", 100),
    _kernel(GLUON, "cluster_wgmma", 90),
    _kernel(GLUON, "block_scaled", 100, a_format="e4m3", b_format="e4m3"),
    _kernel(TL, "matmul_by_descriptors", 90, dtype="float16", num_stages=3),
    _kernel(TL, "matmul_by_descriptors", 100, dtype="float16", num_stages=3),
    _kernel(TL, "matmul_by_pointers", 90, dtype="float16", num_stages=3),
    _kernel(TL, "persistent_matmul", 100, dtype="float16"),
]  # fmt: skip

TUTORIALS: dict[str, list[tuple[int, Callable[[Any], Any]]]] = {
    "03-async-copy": [(90, lambda t: t.test_elementwise_add_pipelined(100, 192, 32, 64, 2))],
    "04-tma": [(90, lambda t: t.test_elementwise_add_pipelined(100, 256, 32, 64, 2))],
    "05-wgmma": [(90, lambda t: t.test_blocked_matmul_pipelined(208, 416, 304, 64, 64, 64, 4))],
    "06-tcgen05": [(100, lambda t: t.test_blocked_matmul_pipelined(208, 416, 304, 64, 64, 64, 4))],
    "07-persistence": [
        (arch, lambda t: t.test_pipelined_matmul(208, 416, 304, 128, 256, 64, 3, 4))
        for arch in (90, 100)
    ],
    "08-warp-specialization": [
        (100, lambda t: t.test_elementwise_add_warp_specialized(100, 192, 32, 64, 2, 2, 4)),
        (100, lambda t: t.test_matmul_warp_specialized(
            208, 416, 304, 128, 256, 64, 3, 4, 4, t.t7.schedulers[0])),
    ],
    "09-tma-gather-scatter": [
        (100, lambda t: t.test_async_gather(8, 16, 0, t.torch.bfloat16, 64, 64, None)),
        (100, lambda t: t.test_async_scatter(8, 16, 0, t.torch.bfloat16, 64, 64, None)),
        (100, lambda t: t.test_matmul_fused_gather_scatter(128, 128, 256, 128, 64, 64, 3)),
    ],
    "10-tcgen05-copy": [
        (100, lambda t: t.test_matmul_accumulate(256, 256, 448, 128, 64, 64, 3, t.torch.float16))
    ],
    "11-tcgen05-mma-scaled": [
        (100, lambda t: t.test_mma_scaled_tcgen05_copy(128, 128, 256, "mxfp8", "mxfp8", 128, 128))
    ],
    "12-cluster-launch-control": [
        (100, lambda t: t.test_op(512, 512, 256, True)),
        (100, lambda t: t.test_op(512, 512, 256, False)),
    ],
    "13-conv-im2col": [
        (arch, lambda t: t.test_conv2d_tma_im2col(1, 16, 16, 64, 64, 3, 3, 1, 1))
        for arch in (90, 100)
    ],
    "14-multicta": [
        (100, lambda t: t.test_multicta_softmax_f32(16, 256)),
        (100, lambda t: t.test_two_cta_tcgen05()),
        (100, lambda t: t.test_tma_multicast_copy()),
        (100, lambda t: t.test_tma_tcgen05()),
        (100, lambda t: t.test_matmul_multicta()),
    ],
}  # fmt: skip
"""By the name of the file: on which architecture which of its tests, made small."""


def tutorial(job: dict[str, Any]) -> None:
    """A test of a Gluon tutorial; as nothing runs, its results are wrong."""
    from triton._C.libtriton import nvidia
    from triton.backends.compiler import GPUTarget

    import triton_ext

    sys.path.insert(0, job["folder"])
    GPUTarget.is_cuda_backend = lambda target: True  # not in all releases
    nvidia.cublas.CublasLt = lambda workspace: None
    with triton_ext.emulate(job["arch"], cuda_on_host=True):
        module = importlib.import_module(job["file"])
        with suppress(AssertionError):
            TUTORIALS[job["file"]][job["number"]][1](module)


def tutorial_jobs(folder: Path) -> Iterator[dict[str, Any]]:
    """Those of `TUTORIALS` that lie in a folder."""
    for file, calls in TUTORIALS.items():
        for number, (arch, _) in enumerate(calls):
            if (folder / f"{file}.py").exists():
                yield {"name": f"{file}-{number}-sm{arch}", "arch": arch, "do": "tutorial",
                       "folder": str(folder), "file": file, "number": number}  # fmt: skip


CUTE = [
    {"arch": 100, "types": ["Float16", "Float16", "Float32"], "tile": [128, 128, 64],
     "instruction": [128, 128], "atoms": ["K_SW128", "K_SW128"], "ctas": 1, "stages": 2},
    {"arch": 100, "types": ["Float16", "Float16", "Float32"], "tile": [256, 128, 64],
     "instruction": [256, 128], "atoms": ["K_SW128", "K_SW128"], "ctas": 2, "stages": 2},
]  # fmt: skip


def cute_kernels() -> Iterator[Launched]:
    """Matmuls that NVIDIA's CuTe DSL compiles."""
    import cute_matmuls

    for number, job in enumerate(CUTE):
        [ptx] = cute_matmuls.compiled([job])
        run = cute_matmuls.Problem(job).run
        yield Launched(f"cute-{number}-sm{job['arch']}", "kernel", job["arch"], "", ptx, {}, run)


# ------------------------------------------------------------------------------ a measurement


def judged(
    job: dict[str, Any], each: int, seed: int, *, every: bool = False
) -> list[dict[str, Any]]:
    """The seeds of the first kernel of a job, with what was said of them.

    Args:
        every: and what one run says of all schedules, as "all".
    """
    import corpus_worker

    corpus_worker.DO["tutorial"] = tutorial
    with redirect_stdout(sys.stderr):
        kernels = list(cute_kernels()) if job["do"] == "cute" else capture(job)[-1:]
    return [
        {
            "kernel": one.name,
            **dataclasses.asdict(mutation),
            "told": verdicts(one, mutation),
            "all": one.all_schedules(mutation.of(one.ptx), 120) if every else "",
        }
        for one in kernels
        for mutation in chosen(one.ptx, reached(one), each, seed)
    ]


def table(faults: list[dict[str, Any]]) -> str:
    """As Markdown, by kind."""
    counts = Counter((each["kind"], outcome_of(each["told"])) for each in faults)
    columns = ("found", "some", "silent", "wrong")
    lines = [
        "| seeded | number | found, every schedule | some schedule | silent | wrong in silence |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in sorted({kind for kind, _ in counts}):
        numbers = [counts[kind, column] for column in columns]
        lines.append(f"| {kind} | {' | '.join(map(str, [sum(numbers), *numbers]))} |")
    totals = Counter(outcome_of(each["told"]) for each in faults)
    numbers = [totals[column] for column in columns]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, [sum(numbers), *numbers]))} |"])


ALL = ("fault", "witness", "not decided", "proven")


def said_of_all(fault: dict[str, Any]) -> str:
    """What one run says of all schedules, in a word of `ALL`."""
    return "fault" if ":" in fault["all"] else fault["all"]


def table_of_all(faults: list[dict[str, Any]]) -> str:
    """As Markdown: by what the three schedules find, what one run says of all."""
    counts = Counter((outcome_of(each["told"]), said_of_all(each)) for each in faults)
    lines = [f"| three schedules | {' | '.join(ALL)} |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in ("found", "some", "silent", "wrong"):
        lines.append(f"| {row} | {' | '.join(str(counts[row, each]) for each in ALL)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=2, help="seeds of a kind in each kernel")
    parser.add_argument("--only", default="", help="a regular expression of kernels")
    parser.add_argument("--tutorials", type=Path, help="a folder with Triton's Gluon tutorials")
    parser.add_argument("--all-schedules", action="store_true", help="and what one run says of all")
    parser.add_argument("--keep", type=Path, help="a file for what was found, a line a seed")
    options = parser.parse_args()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    jobs = list(tutorial_jobs(options.tutorials)) if options.tutorials else list(KERNELS)
    if not options.tutorials and importlib.util.find_spec("cutlass"):
        jobs.append({"name": "cute", "do": "cute"})
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for job in jobs:
            if re.search(options.only, job["name"]):
                those = or_nothing(
                    lambda job=job: judged(
                        job, options.each, options.seed, every=options.all_schedules
                    )
                )
                found += those
                print(job["name"], Counter(outcome_of(one["told"]) for one in those),
                      file=sys.stderr)  # fmt: skip
                if options.keep:
                    with options.keep.open("a") as out:
                        out.writelines(json.dumps(one) + "\n" for one in those)
    print(table(found))
    if options.all_schedules:
        print(table_of_all(found))
    return int(any(missed(one) for one in found))


if __name__ == "__main__":
    sys.exit(main())
