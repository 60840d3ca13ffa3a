"""Faults of compiled kernels, made by machine: which of them are real, and which a pass finds.

`Launched` runs one cluster of a launch on the emulated GPU, with the PTX as it is and as
`ptx_mutations` change it: a change is a real fault if the result is another one, or the emulator
catches it.

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
import math
import os
import random
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import own_cache
from ptx_mutations import WHOLE, Mutation, Mutator, sample

from triton_ext.ptx.parse import parse_ptx

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
        block: the ``%ctaid.x`` of the first block that is run.
        seconds: that the unchanged kernel takes.
    """

    name: str
    kernel: str
    arch: int
    ttgir: str
    ptx: str
    metadata: dict[str, Any]
    run: Callable[[str, str], Any]
    block: int = 0
    seconds: float = 0.0
    results: dict[str, str] = dataclasses.field(default_factory=dict)

    def digest(self, ptx: str, schedule: str) -> str:
        """The digest of all memory after a run, wherever the host put each part of it."""
        memory = self.run(ptx, schedule).launch.memory
        parts = sorted(hashlib.sha256(each.data).digest() for each in memory.allocations)
        return hashlib.sha256(b"".join(parts)).hexdigest()

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
                began = os.times().children_user
                self.results[schedule] = self.outcome(self.ptx, schedule, 120)
                self.seconds = max(self.seconds, os.times().children_user - began)
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
    from triton_ext.emulator.schedule.machine import Machine
    from triton_ext.emulator.schedule.schedule import Schedule
    from triton_ext.emulator.state.block import Options

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

        shape = cluster or (1,)  # whose tiles are larger: there are fewer of them
        at = math.prod(grid) // math.prod(shape) // (3 * math.prod(shape))

        def run(ptx: str, schedule: str) -> Machine:
            changed = decode(parse_ptx(ptx))
            block = (*changed.kernel.directives.get("reqntid", (32,)), 1, 1)[:3]
            launched = prepare(
                changed, grid=grid, block=block, cluster=cluster, args=args,
                dynamic_smem_bytes=dynamic_smem_bytes, memory=memory, names=names,
            )  # fmt: skip
            options = Options(chosen=range(at, at + 1))
            if schedule == "all":
                machine = Machine(changed, launched, options=options)
                machine.verdict = decide(machine, Machine.run)
                return machine
            machine = Machine(changed, launched, Schedule(schedule, 1), options=options)
            machine.run()
            return machine

        files = corpus_worker.read_kernel(groups[-1])
        assert files["ptx"] == text
        block = at * shape[0] % grid[0]
        found[text] = Launched(job["name"], files["kernel"], job["arch"], files["ttgir"], text,
                               files["metadata"], run, block)  # fmt: skip

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


def judged(job: dict[str, Any], each: int, seed: int, budget: float) -> Iterator[dict[str, Any]]:
    """The first kernel of a job, if it has what mutations reach, then the judged mutations that fit
    into so many seconds of processor time.
    """

    def used() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    with redirect_stdout(sys.stderr):
        launched = capture(job)
    for one in launched[:1]:
        if not any(each.opcode.startswith(WHOLE) for each in Mutator(one.ptx).kernel.instructions):
            continue
        yield {
            "name": one.name, "kernel": one.kernel, "arch": one.arch, "ttgir": one.ttgir,
            "ptx": one.ptx, "metadata": one.metadata,
        }  # fmt: skip
        began = used()
        for number, mutation in enumerate(sample(one.ptx, each, seed, one.block)):
            if number > 5 and used() - began > budget:
                break
            yield {**dataclasses.asdict(mutation), "verdict": one.judge(mutation)}


def each_in_fork(work: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """What is iterated over in a forked process, as it comes; RuntimeError if that raises, or dies.

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
                for each in work():
                    print(json.dumps({"made": each}), file=out, flush=True)
                end = {}
            except BaseException:
                end = {"error": traceback.format_exc()[-2000:]}
            print(json.dumps(end), file=out, flush=True)
        os._exit(0)
    os.close(writer)
    found = {}
    with os.fdopen(reader) as answers:
        for line in answers:
            found = json.loads(line)
            if "made" in found:
                yield found["made"]
    status = os.waitpid(child, 0)[1]
    if status or found:
        raise RuntimeError(found.get("error", f"the process ended with status {status}"))


def in_fork(work: Callable[[], Any]) -> Any:
    """What a function returns in a forked process; RuntimeError if it raises, or dies."""
    [made] = each_in_fork(lambda: [work()])
    return made


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


class Report:
    """What verify-descriptors says of one kernel, to compare what it says of mutations with.

    Raises:
        AssertionError: it finds a fault in the kernel itself.
    """

    def __init__(self, kernel: dict[str, Any]) -> None:
        self.of = kernel
        self.mutator = Mutator(kernel["ptx"])
        self.at = {each.line: each for each in self.mutator.kernel.instructions}
        before = self.verified(kernel["ptx"])
        assert not before.diagnostics, (kernel["name"], str(before.diagnostics[0]))
        self.unproven = before.report["unproven"]
        self.is_partial = any(
            name.startswith(("executions", "the end of the PTX", "partitions"))
            for name in self.unproven
        )
        branches = {
            line for line, each in self.at.items() if each.opcode.startswith(("bra", "brx"))
        }
        self.unseen = branches | set(before.report["not_looked_at_lines"])

    def verified(self, ptx: str) -> Any:
        from triton_ext.passes import Compilation, get_pass

        texts = {"ttgir": self.of["ttgir"], "ptx": ptx}
        given = self.of["kernel"], self.of["arch"], "ptx", texts, self.of["metadata"]
        return get_pass("verify-descriptors")(Compilation(*given))

    def judge(self, mutation: Mutation, verdict: str) -> tuple[str, str] | None:
        """What a mutation reaches, and its class; None for what is no change of what counts.

        Not found, but not claimed either is a fault if the report of the changed kernel has a
        reason that it has not, or less often, of the kernel itself; if that one already says that
        not all executions were compared, or if all that the changed instruction reaches stands
        among what is not looked at.
        """
        if verdict == "not PTX" or not self.mutator.matters(self.at[mutation.line], mutation.text):
            return None
        place = "moves between registers and shared memory"
        reaches = [each for each in mutation.reaches if not each.startswith(("bra", "brx"))]
        if not reaches or not all(each.startswith(MOVES) for each in reaches):
            place = "TMA copies, MMAs, mbarriers, tensor memory, branches"
        outcome = self.verified(mutation.of(self.of["ptx"]))
        if outcome.diagnostics:
            found = "found"
        elif (
            Counter(outcome.report["unproven"]) - Counter(self.unproven)
            or self.is_partial
            or set(mutation.lines) <= self.unseen
        ):
            found = "unproven"
        else:
            found = "claimed"
        return place, found if verdict not in HARMLESS else f"harmless, {found}"


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


def judgements(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each kernel, followed by its judged mutations, as they come."""
    import corpus_worker  # noqa: F401 (what is imported here, the forks inherit)
    import plan_launch  # noqa: F401
    import torch

    import triton_ext

    torch.set_num_threads(1)
    with triton_ext.emulate("sm_90"):
        pass
    for job in chosen_jobs(chosen.only, chosen.seed)[: chosen.kernels]:
        try:
            yield from each_in_fork(
                lambda job=job: judged(job, chosen.each, chosen.seed, chosen.budget)
            )
        except RuntimeError as error:
            print(f"{job['name']}: {error}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=12, help="mutations of a kernel")
    parser.add_argument(
        "--budget", type=float, default=5, help="seconds of processor time to judge a kernel's"
    )
    parser.add_argument("--kernels", type=int, default=1000, help="at most so many")
    parser.add_argument("--only", default="", help="a regular expression of jobs")
    parser.add_argument("--keep", type=Path, help="a file for what is judged, as it comes")
    parser.add_argument("--judged", type=Path, nargs="*", help="such files, in place of judging")
    chosen = parser.parse_args()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    counts: Counter[tuple[str, str]] = Counter()
    alarms, kernels, report = 0, 0, None
    with own_cache():
        if chosen.judged:
            lines = [line for path in chosen.judged for line in path.read_text().splitlines()]
            found: Iterator[Any] = map(json.loads, lines)
        else:
            found = judgements(chosen)
        for each in found:
            if chosen.keep:
                with chosen.keep.open("a") as out:
                    out.write(json.dumps(each) + "\n")
            if "ptx" in each:
                kernels += 1
                try:
                    report = Report(each)
                except AssertionError as error:
                    report, alarms = None, alarms + 1
                    print(f"false alarm: {error}", file=sys.stderr, flush=True)
            elif report is not None:
                verdict = each.pop("verdict")
                mutation = Mutation(**each)
                what = report.judge(mutation, verdict)
                if what is None:
                    continue
                counts[what] += 1
                change = " ".join(mutation.text.split())[:80]
                print(f"{what[1]}: {report.of['name']}, PTX line {mutation.line}: {mutation.kind}:"
                      f" {change}", file=sys.stderr, flush=True)  # fmt: skip
    harmless = sum(count for (_, name), count in counts.items() if name.startswith("harmless"))
    print(f"seed {chosen.seed}: {kernels} kernels, {harmless} harmless mutations, {alarms} alarms")
    print(table(counts))
    return int(bool(alarms) or any(name == "claimed" for _, name in counts))


if __name__ == "__main__":
    sys.exit(main())
