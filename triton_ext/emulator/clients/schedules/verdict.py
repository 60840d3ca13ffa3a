"""What is known of all schedules of a launch, in words and as JSON's types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.emulator.clients.schedules.explanation import Explanation
from triton_ext.emulator.clients.schedules.guide import Plan
from triton_ext.emulator.errors import EmulationError
from triton_ext.ptx.parse import Instruction

PROVEN, WITNESS, UNDECIDED = "proven", "witness", "not decided"


ASSUMED = (
    "control flow, addresses and the values that decide them are those of this run",
    "what the emulator models is what the hardware does (docs/guide/emulator.md)",
    "a tensor core works, and its commits arrive in the own block, in the order of issue; a block"
    " may end while a commit to several is on its way to it whose work is known to be done",
    "fence.proxy.async orders what a fence does",
    "loops that wait for an mbarrier go on for as long as it takes",
    "of proxy fences, those between mbarrier.init and TMA, and between threads' reads and a copy"
    " that overwrites what they read, are not asked for",
    "lanes that have met (.sync, .aligned) see each other's accesses",
    "registers (setmaxnreg) and tensor memory that a block waits for become free",
)
"""What a proof rests on, besides the run."""


def location(at: Instruction | None) -> str:
    """The line of the program that an instruction comes from, or of the PTX."""
    if at is None:
        return ""
    return str(at.source) if at.source is not None else f"PTX line {at.line}"


@dataclass(frozen=True)
class Reason:
    """Why a launch is not decided.

    Attributes:
        text: what is in doubt, in words.
        at: the instruction at which it is.
        times: how often it was found.
    """

    text: str
    at: Instruction | None = None
    times: int = 1

    def __str__(self) -> str:
        where = f"{location(self.at)}: {self.at.opcode} " if self.at is not None else ""
        return f"{where}{self.text}" + (f" ({self.times} times)" if self.times > 1 else "")

    def as_object(self) -> dict[str, Any]:
        """The reason as an object for JSON."""
        opcode = None if self.at is None else self.at.opcode
        return {
            "text": self.text, "opcode": opcode, "place": location(self.at), "times": self.times,
        }  # fmt: skip


@dataclass(frozen=True)
class Witness:
    """An interleaving that breaks the kernel.

    Attributes:
        plan: the schedule that brings it about.
        ends: how the run ends, in words.
        fault: the error; None if it only has another result.
    """

    plan: Plan
    ends: str
    fault: EmulationError | None

    def lines(self) -> Iterator[str]:
        """The steps, numbered, and the end."""
        for number, step in enumerate(self.plan.steps, 1):
            yield f"{number:>3}. {step}"
        yield f"  => {self.ends}"


class BrokenSchedule(EmulationError):
    """A schedule that breaks the kernel: a race, a deadlock, or another result.

    Attributes:
        verdict: the verdict on the launch; its witness has the steps.
    """

    def __init__(self, verdict: Verdict) -> None:
        witness = verdict.witness
        assert witness is not None
        steps = "\n".join(witness.lines())
        at = None if witness.fault is None else witness.fault.instruction
        super().__init__(f"a schedule breaks {verdict.kernel}:\n{steps}", at)
        self.verdict = verdict


@dataclass(frozen=True)
class Verdict:
    """What one run says of all schedules.

    Attributes:
        kernel: the kernel's name.
        outcome: "proven", "witness" or "not decided".
        reasons: why it is not decided.
        witness: the interleaving that breaks it.
        unordered: atomic operations whose order is free; the result may depend on it.
        assumed: what the proof rests on: `ASSUMED`, and what this kernel needs besides.
        counted: how large the question was: clusters, parties, operations at barriers, barriers,
            those where commits may stand in for each other ("loose"), doubts, and runs that
            followed one.
        seconds: how long the run took, and how long the whole judgement.
        explored: which orders of instructions that depend on time were run; "" if there are none.
        explained: what the kernel's waits are good for, if that was asked for.
    """

    kernel: str
    outcome: str
    reasons: Sequence[Reason]
    witness: Witness | None
    unordered: Sequence[Instruction]
    assumed: Sequence[str]
    counted: dict[str, int]
    seconds: tuple[float, float]
    explored: str = ""
    explained: Explanation | None = None

    def as_object(self) -> dict[str, Any]:
        """The verdict as an object for JSON."""
        found: dict[str, Any] = {
            "kernel": self.kernel,
            "outcome": self.outcome,
            "reasons": [each.as_object() for each in self.reasons],
            "unordered": [f"{location(each)}: {each.opcode}" for each in self.unordered],
            "assumed": list(self.assumed),
            "counted": self.counted,
            "seconds": {"run": self.seconds[0], "all": self.seconds[1]},
            "explored": self.explored,
            "witness": None,
        }
        if self.explained is not None:
            found["explained"] = self.explained.as_object()
        if self.witness is not None:
            found["witness"] = {
                "ends": self.witness.ends,
                "steps": list(self.witness.plan.steps),
                "schedule": self.witness.plan.as_object(),
            }
        return found

    def lines(self) -> Iterator[str]:
        """The verdict in words, a line each."""
        counted = self.counted
        size = (
            f"{counted['operations']} operations of {counted['parties']} parties at"
            f" {counted['barriers']} barriers"
        )
        yield f"{self.kernel}: {self.outcome} for all schedules ({size})"
        if self.witness is not None:
            yield from self.witness.lines()
        for reason in self.reasons:
            yield f"  {reason}"
        if self.explored:
            yield f"  explored: {self.explored}"
        for each in self.unordered:
            yield f"  in any order: {location(each)}: {each.opcode}"
        for text in self.assumed[len(ASSUMED) :]:
            yield f"  assumed: {text}"
        if self.explained is not None:
            yield from self.explained.lines()
