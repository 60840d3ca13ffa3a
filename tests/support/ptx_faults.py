"""Faults of compiled kernels, made by machine: which of them are real, and which a pass finds.

`mutations` changes every operand of every instruction that reaches a TMA copy, an MMA, an mbarrier
or an address in shared or tensor memory, in each way that fits: a constant is another one, a
register is exchanged, the base of an address is dropped, an instruction is left out or issued
twice, a modifier is another one, a guard is inverted. `Launched` runs one cluster of a launch on
the emulated GPU, with the PTX as it is and as it was changed: a change is a real fault if the
result is another one, or the emulator catches it.

``python tests/support/ptx_faults.py [--seed N] [--each N] [--only PART]`` judges faults of many
kernels of the corpus, and prints how many verify-descriptors finds; it fails if one is claimed to
be none.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_ext.ptx.folding import destinations, mentioned
from triton_ext.ptx.parse import Instruction, Kernel, parse_ptx, split_operands

# ------------------------------------------------------------------------------- mutations

WHOLE = (
    "cp.async.bulk", "cp.reduce.async.bulk", "wgmma.mma_async", "tcgen05.mma", "tcgen05.cp",
    "tcgen05.alloc", "tcgen05.commit", "mbarrier.", "tensormap.", "st.async", "red.async",
)  # fmt: skip
"""Instructions all of whose operands count, but for lists of registers with data."""
ADDRESSED = (
    "st.shared", "ld.shared", "stmatrix", "ldmatrix", "cp.async.ca", "cp.async.cg", "tcgen05.ld",
    "tcgen05.st",
)  # fmt: skip
"""Instructions of which the address counts."""


@dataclass(frozen=True)
class Mutation:
    """One change of the text of a PTX module.

    Attributes:
        kind: what sort of change.
        line: of the instruction that is changed.
        opcode: that instruction's.
        start, stop: the part of the text that is replaced.
        text: what stands there instead.
        reaches: the opcodes of the instructions that the changed one reaches.
        lines: their lines.
    """

    kind: str
    line: int
    opcode: str
    start: int
    stop: int
    text: str
    reaches: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def of(self, ptx: str) -> str:
        """The changed module."""
        return ptx[: self.start] + self.text + ptx[self.stop :]


def _counted(instruction: Instruction) -> list[str]:
    """The operands of a sink that count; [] for an instruction that is none."""
    operands = list(instruction.operands)
    if instruction.opcode.startswith(WHOLE):
        return [each for each in operands if each[:1] != "{"]
    if instruction.opcode.startswith(ADDRESSED):
        return [each for each in operands if each[:1] == "["][:1]
    return []


def reached(kernel: Kernel) -> dict[int, set[int]]:
    """For each instruction that reaches a sink, by its number, the numbers of the sinks."""
    writers: dict[str, list[int]] = {}
    for number, each in enumerate(kernel.instructions):
        for _, name in destinations(each):
            writers.setdefault(name, []).append(number)
    found: dict[int, set[int]] = {}
    for sink, each in enumerate(kernel.instructions):
        counted = _counted(each)
        if not counted and not each.opcode.startswith(("bra", "brx")):
            continue
        seen, pending = {sink}, [sink]
        while pending:
            number = pending.pop()
            found.setdefault(number, set()).add(sink)
            instruction = kernel.instructions[number]
            if number == sink and counted:
                instruction = dataclasses.replace(instruction, operands=tuple(counted))
            for name in mentioned(instruction):
                for other in writers.get(name, ()):
                    if other not in seen:
                        seen.add(other)
                        pending.append(other)
    return found


MODIFIERS = (
    (".lt", ".le"), (".gt", ".ge"), (".eq", ".ne"), ("add.", "sub."), ("and.", "or."),
    ("xor.", "or."), ("shl.", "shr."), ("min.", "max."), (".lo", ".hi"), (".s32", ".u32"),
    (".x4", ".x2"), (".x2", ".x4"), (".v4", ".v2"),
    (".parity", ""), ("cta_group::1", "cta_group::2"), ("shared::cta", "shared::cluster"),
    (".param", ""), (".trans", ""), (".expect_tx", ""), ("1d", "2d"), ("2d", "3d"), ("3d", "2d"),
    (".multicast::cluster", ""), ("kind::f16", "kind::tf32"), ("kind::f8f6f4", "kind::f16"),
    ("e4m3", "e5m2"), ("bf16", "f16"), ("m64n64", "m64n32"), ("n128", "n64"),
    ("128x256b", "128x128b"),
    (".test_wait", ".try_wait"), (".arrive", ".arrive.noComplete"), ("up.", "down."),
    (".idx", ".bfly"), (".wide", ".lo"), ("scale_vec::2X", "scale_vec::4X"), (".add", ".max"),
    (".release", ".relaxed"), (".acquire", ".relaxed"), (".cta.", ".cluster."),
)  # fmt: skip
_REGISTER = re.compile(r"%(?:rd|rs|r|p)\d+")
_NUMBER = re.compile(r"(?<![\w%.])-?(?:0[xX][0-9a-fA-F]+|\d+)(?![\w.])")


class Mutator:
    """The mutations of one PTX module."""

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        self.starts = [0, *(match.end() for match in re.finditer("\n", ptx))]
        (self.kernel,) = [each for each in parse_ptx(ptx).kernels if each.is_entry]
        self.reached = reached(self.kernel)
        self.written: dict[str, list[tuple[int, str]]] = {}
        for number, each in enumerate(self.kernel.instructions):
            for _, name in destinations(each):
                kind = _REGISTER.fullmatch(name)
                if kind:
                    self.written.setdefault(name.rstrip("0123456789"), []).append((number, name))

    def span(self, instruction: Instruction) -> tuple[int, int] | None:
        """Where an instruction stands, with its guard; None if that is not clear."""
        begin = self.starts[instruction.line - 1]
        at = self.ptx.find(instruction.opcode, begin)
        line_end = self.ptx.find("\n", begin)
        if not begin <= at < line_end or instruction.opcode in self.ptx[at + 1 : line_end]:
            return None
        stop = self.ptx.find(";", at) + 1
        guard = f"@{instruction.predicate}"
        if instruction.predicate:
            at = self.ptx.rfind(guard, begin, at)
            if at < 0:
                return None
        return at, stop

    def all(self, random_: random.Random) -> Iterator[Mutation]:
        """One mutation of each kind at each place, in the order of the text."""
        for number in sorted(self.reached):
            instruction = self.kernel.instructions[number]
            span = self.span(instruction)
            if span is None:
                continue
            sinks = [self.kernel.instructions[i] for i in sorted(self.reached[number])]
            names = tuple(sorted({".".join(each.opcode.split(".")[:3]) for each in sinks}))
            lines = tuple(each.line for each in sinks)
            for kind, text in self.changes(number, instruction, *span, random_):
                if self.matters(instruction, text):
                    yield Mutation(
                        kind, instruction.line, instruction.opcode, *span, text, names, lines
                    )

    @staticmethod
    def matters(instruction: Instruction, text: str) -> bool:
        """Whether a change is one of what counts of an instruction."""
        guard, _, rest = text.partition(instruction.opcode)
        counted = _counted(instruction)
        if not counted or not rest or text.count(instruction.opcode) > 1:
            return True
        operands = tuple(split_operands(rest.strip().rstrip(";")))
        same = _counted(dataclasses.replace(instruction, operands=operands)) == counted
        return not same or guard.strip("@ \t") != instruction.predicate

    def changes(
        self, number: int, instruction: Instruction, start: int, stop: int, random_: random.Random
    ) -> Iterator[tuple[str, str]]:
        text = self.ptx[start:stop]
        at = text.index(instruction.opcode)
        guard, rest = text[:at], text[at + len(instruction.opcode) :]
        opcode = instruction.opcode
        counted = "".join(_counted(instruction)) or rest
        whole = opcode.startswith((*WHOLE, *ADDRESSED))
        # ------ constants
        for match in _NUMBER.finditer(rest):
            if whole and match[0] not in counted:
                continue
            value = int(match[0], 0)
            other = random_.choice(
                [value + 1, value - 1, value ^ 16, value + 1024, value * 2, 0, value ^ 64]
            )
            if other != value:
                yield (
                    "constant",
                    f"{guard}{opcode}{rest[: match.start()]}{other}{rest[match.end() :]}",
                )
        # ------ registers
        for match in _REGISTER.finditer(rest):
            name = match[0]
            if (whole and name not in counted) or (
                not whole and name in rest[: rest.find(",")] and match.start() < rest.find(",")
            ):
                continue
            known = self.written.get(name.rstrip("0123456789"), [])
            upto = bisect_left(known, (number, ""))
            near = [other for _, other in known[max(0, upto - 40) : upto] if other != name]
            if near:
                other = random_.choice(near)
                yield (
                    "register",
                    f"{guard}{opcode}{rest[: match.start()]}{other}{rest[match.end() :]}",
                )
        # ------ bases
        parts = instruction.operands
        if opcode.startswith(("add.", "or.b")) and len(parts) == 3:
            width = opcode.rpartition(".")[2]
            for kept in parts[1:]:
                yield "base dropped", f"{guard}mov.b{width[1:]} {parts[0]}, {kept};"
        for match in re.finditer(r"\[(%\w+)\s*\+\s*-?\d+\]", rest):
            yield (
                "offset dropped",
                f"{guard}{opcode}{rest[: match.start()]}[{match[1]}]{rest[match.end() :]}",
            )
        if "global_smem" in rest:
            yield "symbol dropped", f"{guard}{opcode}{re.sub('global_smem', '0', rest)}"
            yield (
                "symbol doubled",
                text
                + f"\n\tadd.s{64 if '64' in opcode else 32} {parts[0]}, {parts[0]}, {parts[1]};"
                if opcode.startswith("mov")
                else text,
            )
        # ------ instructions
        base = opcode.partition(".")[0]
        if base in ("mov", "cvta", "cvt") and len(parts) == 2 and base == "cvta":
            yield "deleted", f"{guard}mov.b64 {parts[0]}, {parts[1]};"
        elif base not in ("bra", "brx") or not instruction.predicate:
            yield "deleted", ""
        if base not in ("bra", "brx"):
            yield "duplicated", f"{text}\n\t{text}"
        # ------ modifiers
        for one, other in MODIFIERS:
            for old, new in ((one, other), (other, one)):
                if old and old in opcode and opcode.replace(old, new, 1) != opcode:
                    if new and new in opcode and not old.startswith((".", "add", "sub")):
                        continue
                    yield "modifier", f"{guard}{opcode.replace(old, new, 1)}{rest}"
        # ------ guards
        if instruction.predicate:
            inverted = instruction.predicate
            inverted = inverted[1:] if inverted[0] == "!" else f"!{inverted}"
            yield "guard inverted", f"@{inverted} {opcode}{rest}"
            if base not in ("bra", "brx"):
                yield "guard dropped", f"{opcode}{rest}"


def sample(ptx: str, count: int, seed: int) -> list[Mutation]:
    """So many mutations of a module: first an instruction is chosen, then one of its changes."""
    random_ = random.Random(seed)
    by_place: dict[int, list[Mutation]] = {}
    for each in Mutator(ptx).all(random_):
        by_place.setdefault(each.start, []).append(each)
    places = sorted(by_place)
    random_.shuffle(places)
    found = []
    while places and len(found) < count:
        for place in list(places):
            changes = by_place[place]
            found.append(changes.pop(random_.randrange(len(changes))))
            if not changes:
                places.remove(place)
            if len(found) >= count:
                break
    return found


# -------------------------------------------------------------------------------- the judge


@dataclass
class Launched:
    """One launch of a corpus kernel, to run again and again on the emulated GPU.

    Attributes:
        name: of the job.
        kernel: of the function.
        arch: 90 or 100.
        ttgir, ptx, metadata: what Triton compiled.
        run: runs the PTX that it is given in place of the compiled one on the launch's arguments,
            under a schedule, or "all"; returns the machine, or raises what the emulator says.
        seconds: that the unchanged kernel takes.
    """

    name: str
    kernel: str
    arch: int
    ttgir: str
    ptx: str
    metadata: dict[str, Any]
    run: Callable[[str, str], Any]
    seconds: float = 0.0
    results: dict[str, str] = dataclasses.field(default_factory=dict)

    def digest(self, ptx: str, schedule: str) -> str:
        """Of all memory after a run."""
        digest = hashlib.sha256()
        for each in self.run(ptx, schedule).launch.memory.allocations:
            digest.update(each.data.tobytes())
        return digest.hexdigest()

    def outcome(self, ptx: str, schedule: str, limit: float) -> str:
        """A digest of all memory after a run in a fork, or what went wrong."""
        return self._in_fork(lambda: self.digest(ptx, schedule), limit)

    def all_schedules(self, ptx: str, limit: float) -> str:
        """What is said of all schedules: "proven", "not decided" or "witness", or the fault that
        the first run ends in."""
        return self._in_fork(lambda: str(self.run(ptx, "all").verdict.outcome), limit)

    def _in_fork(self, answer: Callable[[], str], limit: float) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            gc.freeze()  # the parent's garbage is not to be collected here: see `in_fork`
            try:
                os.close(reader)
                signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_VIRTUAL, limit)
                try:
                    text = answer()
                except BaseException as error:
                    text = f"{type(error).__name__}: {error}"
                os.write(writer, text[:4000].encode(errors="replace"))
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            text = answer.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not text and status != -signal.SIGVTALRM:
            raise RuntimeError(f"{self.name}: the process of a judgement ended with {status}")
        return text or "Timeout: it does not end"

    def judge(self, mutation: Mutation) -> str:
        """What a change does: "harmless", "not PTX", or what is wrong."""
        for schedule in ("eager", "random"):
            if schedule not in self.results:
                began = time.process_time(), os.times().children_user
                self.results[schedule] = self.outcome(self.ptx, schedule, 120)
                self.seconds = max(self.seconds, os.times().children_user - began[1])
                if ":" in self.results[schedule]:
                    raise RuntimeError(f"{self.name}: {self.results[schedule]}")
            found = self.outcome(mutation.of(self.ptx), schedule, 3 * self.seconds + 1)
            if found.startswith(("UnsupportedInstruction", "LayoutError", "PtxError")):
                return "not PTX"
            if found != self.results[schedule]:
                return found if ":" in found else "another result"
        return "harmless"


def capture(job: dict[str, Any]) -> list[Launched]:
    """The kernels that a job launches, compiled here, on inputs with numbers in them."""
    import corpus_worker
    import torch
    from triton import knobs
    from triton.runtime.jit import JITFunction
    from up_to_ptx import up_to_ptx

    import triton_ext
    from triton_ext.emulator.clients.schedules.decide import decide
    from triton_ext.emulator.host.gpu import EmulatedGpu
    from triton_ext.emulator.host.run import prepare
    from triton_ext.emulator.instructions import decode
    from triton_ext.emulator.schedule.machine import Machine, Schedule

    generator = torch.Generator().manual_seed(0)

    def filled(shape: Any, *rest: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        shape = (shape, *rest) if isinstance(shape, int) else tuple(shape)
        dtype = dtype or torch.float32
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 4, shape, generator=generator).to(dtype)

    groups: list[Any] = []
    found: dict[str, Launched] = {}

    def launch(gpu: Any, program: Any, *, grid: Any, cluster: Any, args: Any,
               dynamic_smem_bytes: int, memory: Any, names: Any, **_: Any) -> None:  # fmt: skip
        text = texts[id(program)]
        if text in found:
            return

        def run(ptx: str, schedule: str) -> Machine:
            changed = decode(parse_ptx(ptx))
            block = (*changed.kernel.directives.get("reqntid", (32,)), 1, 1)[:3]
            launched = prepare(
                changed, grid=grid, block=block, cluster=cluster, args=args,
                dynamic_smem_bytes=dynamic_smem_bytes, memory=memory, names=names,
            )  # fmt: skip
            at = launched.clusters // 3
            chosen = range(at, at + 1)
            if schedule == "all":
                machine = Machine(changed, launched, chosen=chosen)
                machine.verdict = decide(machine, Machine.run)
                return machine
            machine = Machine(changed, launched, Schedule(schedule, 1), chosen=chosen)
            machine.run()
            return machine

        files = corpus_worker.read_kernel(groups[-1])
        assert files["ptx"] == text
        found[text] = Launched(job["name"], files["kernel"], job["arch"], files["ttgir"], text,
                               files["metadata"], run)  # fmt: skip

    texts: dict[int, str] = {}
    decoded = EmulatedGpu.program

    def noted(gpu: Any, ptx: str) -> Any:
        program = decoded(gpu, ptx)
        texts[id(program)] = ptx
        return program

    before = EmulatedGpu.launch, torch.empty
    for each in gc.get_objects():  # a kernel that this process has compiled is compiled again
        if isinstance(each, JITFunction):
            each.device_caches.clear()
    EmulatedGpu.program = noted
    knobs.compilation.listener = lambda **told: groups.append(told["metadata_group"])
    EmulatedGpu.launch = launch
    torch.empty = filled
    try:
        with up_to_ptx():
            if job["do"] == "matmul":
                import plan_launch

                from triton_ext.kernels.spec import kernel_spec

                config = kernel_spec(job["arch"], **job["config"])
                a, b, extras, _ = plan_launch.problem(config, 256, 256, 256)
                with triton_ext.emulate(job["arch"], cuda_on_host=True):
                    plan_launch.launch(config, a, b, extras, job.get("multiprocessors", 4))
            else:
                corpus_worker.DO[job["do"]](job)
    finally:
        EmulatedGpu.launch, torch.empty = before
        EmulatedGpu.program = decoded
    return list(found.values())


# ------------------------------------------------------------------------------- a measurement


def judge_job(job: dict[str, Any], each: int, seed: int, budget: float) -> list[dict[str, Any]]:
    """The kernels of a job, each with the judged mutations that fit into so many seconds."""
    with redirect_stdout(sys.stderr):
        launched = capture(job)
    found = []
    for one in launched[:1]:
        if not any(each.opcode.startswith(WHOLE) for each in Mutator(one.ptx).kernel.instructions):
            continue
        faults, began = [], time.time()
        for mutation in sample(one.ptx, each, seed):
            faults.append({**dataclasses.asdict(mutation), "verdict": one.judge(mutation)})
            if time.time() - began > budget and len(faults) > 5:
                break
        found.append({
            "name": one.name, "kernel": one.kernel, "arch": one.arch, "ttgir": one.ttgir,
            "ptx": one.ptx, "metadata": one.metadata, "faults": faults,
        })  # fmt: skip
    return found


def in_fork(work: Callable[[], Any]) -> Any:
    """What a function returns in a forked process; RuntimeError if it raises, or dies.

    Garbage of the parent stays there: its finalizers may join threads that are not forked.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()
        import torch

        os.close(reader)
        torch.set_num_threads(1)  # the parent's pool of threads is not forked: who asks it waits
        with os.fdopen(writer, "w") as out:
            try:
                json.dump({"made": work()}, out)
            except BaseException:
                json.dump({"error": traceback.format_exc()[-2000:]}, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    found = json.loads(text) if text else {"error": f"the process ended with status {status}"}
    if "error" in found:
        raise RuntimeError(found["error"])
    return found["made"]


def or_nothing(work: Callable[[], list[Any]]) -> list[Any]:
    """The same; an error is printed, and nothing found then."""
    try:
        found: list[Any] = in_fork(work)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return []
    return found


HARMLESS = ("harmless", "not PTX")
MOVES = ("st.shared", "ld.shared", "ldmatrix", "stmatrix")


def classes(kernel: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Mutation]]:
    """What verify-descriptors says of each judged mutation: (what it reaches, the class).

    Not found, but not claimed either is a fault if the report of the changed kernel has more
    unproven than that of the kernel itself, if that one already says that not all executions were
    compared, or if all that the changed instruction reaches stands among what is not looked at.
    """
    from triton_ext.passes import Compilation, get_pass

    def verified(ptx: str) -> Any:
        texts = {"ttgir": kernel["ttgir"], "ptx": ptx}
        given = kernel["kernel"], kernel["arch"], "ptx", texts, kernel["metadata"]
        return get_pass("verify-descriptors")(Compilation(*given))

    mutator = Mutator(kernel["ptx"])
    at = {each.line: each for each in mutator.kernel.instructions}
    before = verified(kernel["ptx"])
    assert not before.diagnostics, (kernel["name"], str(before.diagnostics[0]))
    unproven = before.report["unproven"]
    in_part = any(
        name.startswith(("executions", "the end of the PTX", "partitions")) for name in unproven
    )
    listed = set(before.report["not_looked_at_lines"])
    branches = {
        each.line for each in mutator.kernel.instructions
        if each.opcode.startswith(("bra", "brx"))
    }  # fmt: skip
    for fault in kernel["faults"]:
        verdict = fault["verdict"]
        mutation = Mutation(**{name: value for name, value in fault.items() if name != "verdict"})
        if verdict == "not PTX" or not mutator.matters(at[mutation.line], mutation.text):
            continue
        place = "moves between registers and shared memory"
        reaches = [each for each in mutation.reaches if not each.startswith(("bra", "brx"))]
        if not reaches or not all(each.startswith(MOVES) for each in reaches):
            place = "TMA copies, MMAs, mbarriers, tensor memory, branches"
        outcome = verified(mutation.of(kernel["ptx"]))
        if outcome.diagnostics:
            found = "found"
        elif (
            sum(outcome.report["unproven"].values()) > sum(unproven.values())
            or in_part
            or set(mutation.lines) <= listed | branches
        ):
            found = "unproven"
        else:
            found = "claimed"
        yield (place, found if verdict not in HARMLESS else f"harmless, {found}"), mutation


def table(counts: Counter[tuple[str, str]]) -> str:
    """As Markdown."""
    lines = [
        "| reaches | real | found | unproven | claimed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for place in sorted({place for place, _ in counts}, reverse=True):
        numbers = [counts[place, name] for name in ("found", "unproven", "claimed")]
        share = f"{numbers[0] / max(1, sum(numbers)):.1%}"
        lines.append(
            f"| {place} | {sum(numbers)} | {numbers[0]} ({share}) | {numbers[1]} | {numbers[2]} |"
        )
    return "\n".join(lines)


def chosen_jobs(only: str, seed: int) -> list[dict[str, Any]]:
    """The jobs of the corpus that launch a kernel, in an order by the seed."""
    import pass_corpus

    jobs = [each for each in pass_corpus.jobs(2) if each["do"] in ("kernel", "matmul")]
    jobs = [each for each in jobs if each["kind"] != "simple" and re.search(only, each["name"])]
    random.Random(seed).shuffle(jobs)
    return jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=12, help="mutations of a kernel")
    parser.add_argument("--budget", type=float, default=5, help="seconds to judge a kernel's")
    parser.add_argument("--kernels", type=int, default=1000, help="at most so many")
    parser.add_argument("--only", default="", help="a regular expression of jobs")
    parser.add_argument("--keep", type=Path, help="a file for what is judged, a line a kernel")
    parser.add_argument("--judged", type=Path, nargs="*", help="such files, in place of judging")
    chosen = parser.parse_args()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        if chosen.judged:
            lines = [line for path in chosen.judged for line in path.read_text().splitlines()]
            kernels: Iterator[Any] = map(json.loads, lines)
        else:
            kernels = (
                kernel
                for job in chosen_jobs(chosen.only, chosen.seed)[: chosen.kernels]
                for kernel in or_nothing(
                    lambda job=job: judge_job(job, chosen.each, chosen.seed, chosen.budget)
                )
            )  # fmt: skip
        names = []
        for kernel in kernels:
            names.append(kernel["name"])
            if chosen.keep:
                with chosen.keep.open("a") as out:
                    out.write(json.dumps(kernel) + "\n")
            for what, mutation in classes(kernel):
                counts[what] += 1
                if what[1] in ("claimed", "unproven"):
                    change = " ".join(mutation.text.split())[:80]
                    print(f"{what[1]}: {kernel['name']}, PTX line {mutation.line}: {mutation.kind}:"
                          f" {change}", file=sys.stderr)  # fmt: skip
    harmless = sum(count for (_, name), count in counts.items() if name.startswith("harmless"))
    print(f"seed {chosen.seed}: {len(names)} kernels, {harmless} harmless mutations")
    print(table(counts))
    return int(any(name == "claimed" for _, name in counts))


if __name__ == "__main__":
    sys.exit(main())
