"""Calls of the functions that CUDA gives to every kernel: ``vprintf``, ``malloc`` and the like.

Functions of the module itself are put in line before the kernel is decoded: see `inlining`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED
from triton_ext.emulator.decode.inlining import call_parts
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run
from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import load_bytes
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Symbol
from triton_ext.ptx.parse import Instruction

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?P<precision>\.(?:\*|\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)
_LONG = ("l", "ll", "j", "z", "t")


def _arguments(
    at: Instruction, texts: tuple[str, ...], operands: Operands, number: int
) -> list[Symbol]:
    symbols = [operands.symbol(text, at.scope) for text in texts]
    found = [symbol for symbol in symbols if symbol is not None]
    if len(found) != number or len(texts) != number:
        raise UnsupportedInstruction(f"{number} arguments in parameter space are expected", at)
    return found


def _value(cta: Cta, lanes: Lanes, symbol: Symbol, width: int) -> NDArray[np.int64]:
    """An argument as each lane stored it."""
    addresses = np.full(lane_sets.count(lanes), cta.address_of(symbol), np.int64)
    raw = np.ascontiguousarray(load_bytes(cta, lanes, symbol.space, addresses, width))
    values: NDArray[np.int64] = raw.view(f"u{width}")[:, 0].astype(np.int64)
    return values


def _string(cta: Cta, lane: Lanes, address: int) -> str:
    """The text that ends with a zero byte at a generic address."""
    text = bytearray()
    while True:
        byte = load_bytes(cta, lane, "", np.array([address + len(text)]), 1)
        if not byte[0, 0]:
            return text.decode(errors="replace")
        text.append(int(byte[0, 0]))


class _Varargs:
    """Reads a thread's arguments one by one, each at a multiple of its size."""

    def __init__(self, cta: Cta, lane: Lanes, address: int) -> None:
        self.cta, self.lane, self.address = cta, lane, address

    def take(self, dtype: str) -> Any:
        size = np.dtype(dtype).itemsize
        self.address = -(-self.address // size) * size
        raw = load_bytes(self.cta, self.lane, "", np.array([self.address]), size)
        self.address += size
        return np.ascontiguousarray(raw).view(dtype)[0, 0].item()


def format_text(text: str, arguments: _Varargs) -> str:
    """``printf``'s conversions, with the arguments that a kernel packed."""

    def convert(match: re.Match[str]) -> str:
        kind = match["kind"]
        if kind == "%":
            return "%"
        width = str(arguments.take("<i4")) if match["width"] == "*" else match["width"]
        precision = match["precision"] or ""
        if precision == ".*":
            precision = f".{arguments.take('<i4')}"
        value: Any
        if kind == "s":
            value = _string(arguments.cta, arguments.lane, arguments.take("<i8"))
        elif kind == "p":
            return f"{hex(arguments.take('<u8')):>{width or 0}}"
        elif kind in "aA":
            digits = re.sub(r"\.?0*p", "p", float(arguments.take("<f8")).hex())
            return f"{digits if kind == 'a' else digits.upper():>{width or 0}}"
        elif kind in "eEfFgG":
            value = arguments.take("<f8")
        else:
            size = 8 if match["length"] in _LONG else 4
            value = arguments.take(f"<{'i' if kind in 'di' else 'u'}{size}")
            if kind == "c":
                value = chr(value & 0xFF)
        return str(f"%{match['flags']}{width}{precision}{kind}" % value)

    return _CONVERSION.sub(convert, text)


def _print(at: Instruction, results: tuple[str, ...], texts: tuple[str, ...], operands: Operands
           ) -> Run:  # fmt: skip
    form, buffer = _arguments(at, texts, operands, 2)
    kept = [operands.symbol(text, at.scope) for text in results]

    def run(cta: Cta, lanes: Lanes) -> None:
        threads = lane_sets.indices(lanes)
        forms, buffers = _value(cta, lanes, form, 8), _value(cta, lanes, buffer, 8)
        strings: dict[int, str] = {}
        for position, thread in enumerate(threads):
            lane = slice(int(thread), int(thread) + 1)
            address = int(forms[position])
            if address not in strings:
                strings[address] = _string(cta, lane, address)
            packed = _Varargs(cta, lane, int(buffers[position]))
            print(format_text(strings[address], packed), end="")
        for symbol in kept:
            if symbol is not None:  # how many there were is of no use to a kernel
                addresses = np.full(len(threads), cta.address_of(symbol), np.int64)
                cta.local.store(threads, addresses, np.zeros((len(threads), 4), np.uint8))

    return run


def _assertion(
    at: Instruction, results: tuple[str, ...], texts: tuple[str, ...], operands: Operands
) -> Run:
    message, file, line, function, _ = _arguments(at, texts, operands, 5)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        first = int(lane_sets.indices(lanes)[0])
        lane = slice(first, first + 1)

        def text(symbol: Symbol) -> str:
            return _string(cta, lane, int(_value(cta, lane, symbol, 8)[0]))

        number = int(_value(cta, lane, line, 4)[0])
        raise EmulationError(
            f"assertion failed in thread {first}: {text(message)}"
            f" ({text(file)}:{number}, {text(function)})"
        )

    return run


def _malloc(
    at: Instruction, results: tuple[str, ...], texts: tuple[str, ...], operands: Operands
) -> Run:
    (size,), (kept,) = (_arguments(at, each, operands, 1) for each in (texts, results))

    def run(cta: Cta, lanes: Lanes) -> None:
        memory, threads = cta.launch.memory, lane_sets.indices(lanes)
        given = [memory.allocate(each) for each in _value(cta, lanes, size, 8).tolist()]
        addresses = np.full(len(threads), cta.address_of(kept), np.int64)
        cta.local.store(
            threads, addresses, np.array(given, np.uint64).view(np.uint8).reshape(-1, 8)
        )

    return run


def _free(
    at: Instruction, results: tuple[str, ...], texts: tuple[str, ...], operands: Operands
) -> Run:
    (address,) = _arguments(at, texts, operands, 1)

    def run(cta: Cta, lanes: Lanes) -> None:
        for each in _value(cta, lanes, address, 8).tolist():
            if each:
                cta.launch.memory.free(each)

    return run


def _astray(at: Instruction, pointer: str, operands: Operands) -> Run:
    """What is left of a call by address where no function that fits has the address."""
    read = operands.reader(pointer, "u64", at)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        address = int(np.broadcast_to(read(cta, lanes), lane_sets.count(lanes))[0])
        raise EmulationError(
            f"the address {address:#x} is that of no function which takes these arguments, or of"
            " one that would call itself: that is not modelled"
        )

    return run


_EXTERNAL = {"vprintf": _print, "__assertfail": _assertion, "malloc": _malloc, "free": _free}


@instruction(
    "call",
    evidence=COMPILED,
    but="functions of the module, `vprintf`, `__assertfail`, `malloc` and `free`",
)
def call(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("uni")
    results, name, arguments = call_parts(at)
    if name.startswith("%"):
        return _astray(at, name, operands)
    decode = _EXTERNAL.get(name)
    if decode is None:
        raise UnsupportedInstruction(f"the function {name} is not known", at)
    return decode(at, results, arguments, operands)
