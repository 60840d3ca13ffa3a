"""Which steps compute nothing but garbage, once the products of the tensor cores are left out."""

from __future__ import annotations

import re
from dataclasses import replace

from triton_ext.emulator.decode.flow import through
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register

_SOURCES = re.compile(r"wgmma\.mma_async|tcgen05\.ld")
_ARITHMETIC = re.compile(
    r"(abs|add|and|bfe|bfi|copysign|cos|cvt|div|ex2|fma|lg2|lop3|mad|max|min|mov|mul|neg|not|or|prmt"
    r"|rcp|rsqrt|selp|set|setp|shf|shfl|shl|shr|sin|sqrt|sub|tanh|testp|xor)\."
)


def without_values(program: Program) -> Program:
    """The program in which arithmetic on results of the tensor cores does nothing.

    Every instruction is still there, and is told of; registers that such a result may reach hold
    whatever they did.
    """
    arithmetic = [step for step in program.steps if _ARITHMETIC.match(step.instruction.opcode)]
    garbage: set[Register] = set()
    for step in program.steps:
        if _SOURCES.match(step.instruction.opcode):
            garbage |= step.written
    before = -1
    while len(garbage) != before:
        before = len(garbage)
        for step in arithmetic:
            if not garbage.isdisjoint(step.touched):
                garbage |= step.written
    idle = {id(step) for step in arithmetic if step.written and step.written <= garbage}
    steps = tuple(
        replace(step, run=_nothing, flow=through(step.read, step.written))
        if id(step) in idle
        else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def _nothing(cta: Cta, lanes: Lanes) -> None:
    """In the place of what a step does."""
