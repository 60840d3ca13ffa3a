"""The shared-memory addresses that a compiled kernel's threads use, evaluated from its PTX.

Knows just the integer instructions with which Triton computes them from the thread's number.
"""

from __future__ import annotations

import operator
import re

import numpy as np


def bit_field(value, start, length):
    """A field of bits, extended by its highest one (PTX ISA, "bfe")."""
    return ((value >> start & (1 << length) - 1) ^ 1 << length - 1) - (1 << length - 1)


OPERATIONS = {
    "bfe.s32": bit_field,
    "and.b32": operator.and_,
    "or.b32": operator.or_,
    "xor.b32": operator.xor,
    "add.s32": operator.add,
    "mul.lo.s32": operator.mul,
    "shl.b32": operator.lshift,
    "shr.u32": operator.rshift,
    "neg.s32": lambda value: -value,
    "mov.b32": lambda value: value,
    "mov.u32": lambda value: value,
}
ACCESS = re.compile(
    r"^\s*((?:ld|st)(?:\.shared|matrix\.sync)[\w.]*).*\[\s*(%r\d+)\s*(?:\+\s*(-?\d+))?\s*\]", re.M
)
INSTRUCTION = re.compile(r"^\s*([a-z][\w.]*)\s+(%r\d+)\s*,\s*([^;{]+);", re.M)


def shared_addresses(ptx, threads):
    """For each access to shared memory, in order: (mnemonic, the address of each thread)."""
    definitions = {}
    for mnemonic, result, operands in INSTRUCTION.findall(ptx):
        assert result not in definitions, f"{result} is assigned twice"
        definitions[result] = mnemonic, [operand.strip() for operand in operands.split(",")]
    known = {"%tid.x": np.arange(threads), "global_smem": np.zeros(threads, np.int64)}

    def value(name):
        if name not in known:
            if name in definitions:
                mnemonic, operands = definitions[name]
                result = OPERATIONS[mnemonic](*map(value, operands))
                known[name] = result & 0xFFFFFFFF
            else:
                known[name] = np.int64(int(name, 0))
        return known[name]

    return [
        (mnemonic, (value(register) + int(offset or 0)).tolist())
        for mnemonic, register, offset in ACCESS.findall(ptx)
    ]
