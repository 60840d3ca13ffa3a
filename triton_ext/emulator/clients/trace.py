"""A trace: what each warp and each asynchronous unit did, in order, with the values at that moment.

An event is a dictionary of JSON's types: see docs/guide/debugging.md, "A trace for programs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import AsyncOperation, Cta
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, Addresses
from triton_ext.hardware.architecture import generation
from triton_ext.ptx.explain import explain
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.known_bits import Bits
from triton_ext.ptx.notes import Notes
from triton_ext.ptx.parse import Instruction

Event = dict[str, Any]
_VERBS = {"load": "reads", "store": "writes", "atomic": "updates", "copy": "copies from"}


class _Running(Folder):
    """The registers of one thread as they are, in place of what the text alone says of them."""

    _resolve: Operands | None = None  # not before the text has been followed

    def __init__(self, cta: Cta, program: Any) -> None:
        super().__init__(program.kernel)
        self._resolve = Operands(program.kernel, program.target, cta.launch.storage.symbols)
        self.cta, self.lane = cta, slice(0, 1)

    def operand(self, text: str, width: int, at: Instruction | None = None) -> Bits:
        if at is None or self._resolve is None:
            return super().operand(text, width, at)
        name = text.strip().removeprefix("!")
        register = self._resolve.find(name, at.scope)
        kind = "pred" if register is not None and register.width == 1 else f"b{width}"
        if register is not None and kind != "pred":
            kind = f"b{min(width, register.width)}"
        try:
            value = self._resolve.reader(text.strip(), kind, at)(self.cta, self.lane)
            return Bits.constant(int(np.asarray(value).reshape(-1)[0]), width)
        except (UnsupportedInstruction, EmulationError, KeyError, ValueError, IndexError):
            return super().operand(text, width, at)

    def origins(self, text: str, at: Instruction | None = None) -> frozenset[str]:
        return frozenset()


class _Now(Notes):
    """Notes on an instruction that runs: addresses are the block's own."""

    def at(self, value: int, text: str) -> str:
        return f"shared address {value:#x}"

    def tensor_memory(self, text: str) -> str:
        found = self.folder.address(text, self.instruction).field(0, 32)
        if found is None:
            return super().tensor_memory(text)
        return f"tensor memory lane {found >> 16}, column {found & 0xFFFF}"


class Trace(Observer):
    """Events of each instruction and each asynchronous operation, in the order of execution.

    Args:
        write: takes an event.
        pattern: a regular expression; only instructions in whose text it is found.
        blocks: only these blocks; None for all.
    """

    def __init__(
        self,
        write: Callable[[Event], None],
        pattern: str = "",
        blocks: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        self._write, self._pattern = write, re.compile(pattern)
        self._blocks = None if blocks is None else set(blocks)
        self._open: Event | None = None  # of the instruction that runs, to which more may come
        self._brought: list[Event] = []  # barriers that the operation in work has signalled
        self._folders: dict[int, _Running] = {}

    def close(self) -> None:
        """No more is to come."""
        if self._open is not None:
            self._write(self._open)
            self._open = None

    def _event(self, kind: str, cta: Cta, at: Instruction | None, lanes: Lanes) -> Event | None:
        if at is None or (self._blocks is not None and cta.index not in self._blocks):
            return None
        text = str(at)
        if not self._pattern.search(text):
            return None
        source = at.source and {k: getattr(at.source, k) for k in ("file", "line", "column")}
        return {
            "event": kind,
            "step": cta.machine.steps,
            "block": list(cta.index),
            "warps": lane_sets.warps(lanes).tolist(),
            "threads": lane_sets.count(lanes),
            "instruction": text,
            "ptx_line": at.line,
            "source": source or None,
        }

    def _explained(self, cta: Cta, step: Step, lanes: Lanes) -> Event:
        """What the notes on the PTX say, with the values of the first of the threads."""
        machine: Any = cta.machine
        program = machine.program
        folder = self._folders.get(id(program))
        if folder is None:
            folder = self._folders[id(program)] = _Running(cta, program)
        first = int(lane_sets.indices(lanes)[0])
        folder.cta, folder.lane = cta, slice(first, first + 1)
        notes = _Now(step.instruction, folder, generation(program.arch))
        explain(notes)
        if not notes.lines:
            return {}
        launch = cta.launch
        lines = [
            named(re.sub(r"\b(\w+ memory) (?=\1|shared address)", "", line), launch.buffers,
                  launch.buffers_start)
            for line in notes.lines
        ]  # fmt: skip
        return {"says": lines, "values": notes.values}

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self.close()
        event = self._event("instruction", cta, step.instruction, lanes)
        if event is not None:
            self._open = event | self._explained(cta, step, lanes)

    def waits(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self._alone(self._event("waits", cta, step.instruction, lanes))

    def completed(self, operation: AsyncOperation) -> None:
        event = self._event("done", operation.cta, operation.instruction, operation.lanes)
        brought, self._brought = self._brought, []
        if event is not None and brought:
            event["barriers"] = brought
        self._alone(event)

    def _alone(self, event: Event | None) -> None:
        if event is not None:
            self.close()
            self._write(event)

    def _more(self, key: str, value: Event) -> None:
        if self._open is not None:
            self._open.setdefault(key, []).append(value)

    # -------------------------------------------- what the instruction does meanwhile

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int,
        kind: str,
    ) -> None:  # fmt: skip
        if self._open is None or not len(addresses):
            return
        found = {"space": space or "generic", "kind": kind, "bytes": width}
        ends = [int(addresses.min()), int(addresses.max())]
        places = [self._place(cta, space, each) for each in ends]
        self._more("accesses", {**found, "from": places[0], "to": places[1],
                                "addresses": addresses.tolist()})  # fmt: skip

    @staticmethod
    def _place(cta: Cta, space: str, address: int) -> str:
        if space == "shared":
            launch, text = cta.launch, f"shared address {address:#x}"
            return named(text, launch.buffers, launch.buffers_start).removeprefix("shared address ")
        if space in ("global", "const"):
            try:
                found = cta.launch.memory.locate(address)
            except EmulationError:
                return "outside of the launch's memory"
            return found.describe(address - found.start)
        return f"{address:#x}"

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        if box is None:
            self._more("copies", {"kind": kind, "bytes": size})
            return
        tensor, shared = box.map, (cta.rank << RANK_SHIFT) + box.address
        self._more("copies", {
            "kind": kind, "bytes": size, "coordinates": [int(n) for n in box.coordinates],
            "box": list(tensor.box_dims), "tensor": list(tensor.global_dims),
            "strides": list(tensor.global_strides), "element": tensor.data_type.name,
            "swizzle": tensor.swizzle.name, "shared_address": shared,
            "place": self._place(cta, "shared", shared),
            "memory": self._place(cta, "global", tensor.global_address),
        })  # fmt: skip

    @staticmethod
    def _barrier(cta: Cta, barrier: Any, phase: int, **more: Any) -> Event:
        number = getattr(barrier, "number", "of the cluster")
        name = getattr(barrier, "name", None) or f"barrier {number}"
        launch = cta.launch
        return {
            "barrier": named(name, launch.buffers, launch.buffers_start),
            "phase": phase,
            **more,
        }

    def brings(self, cta: Cta, rank: int, barrier: Any, phase: int) -> None:
        self._brought.append(self._barrier(cta, barrier, phase, does="counts bytes"))

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        self._more("barriers", self._barrier(cta, barrier, phase, does="arrives", far=far))

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        event = self._event("passes", cta, at, lanes)
        if event is not None:
            event["barriers"] = [self._barrier(cta, barrier, phase, does="has waited")]
        self._alone(event)


_BEFORE = {"waits": "waits at ", "done": "done: ", "passes": "passes "}


def as_text(event: Event) -> Iterator[str]:
    """An event in lines: host addresses left out, so that two runs say the same."""
    source, warps = event["source"], event["warps"]
    where = f"  [{source['file']}:{source['line']}]" if source else ""
    which = f"warp {warps[0]}" if len(warps) == 1 else f"warps {', '.join(map(str, warps))}"
    yield (
        f"{event['step']:>9}  block {tuple(event['block'])}, {which} ({event['threads']} threads):"
        f" {_BEFORE.get(event['event'], '')}{event['instruction']}{where}"
    )
    for detail in _details(event):
        yield f"           | {detail}"


def _details(event: Event) -> Iterator[str]:
    yield from event.get("says", ())
    for each in event.get("accesses", ()):
        span = each["from"] if each["from"] == each["to"] else f"{each['from']} to {each['to']}"
        what = f"{len(each['addresses'])} x {each['bytes']} bytes, {each['space']}: {span}"
        yield f"{_VERBS.get(each['kind'], each['kind'])} {what}"
    for each in event.get("copies", ()):
        if "box" not in each:
            continue
        way = "<-" if each["kind"] == "load" else "->"
        yield f"{each['place']} {way} {each['memory']}, {each['bytes']} bytes"
        tensor = f"tensor {each['tensor']} of {each['element']}, strides {each['strides']}"
        yield f"{tensor}, box {each['box']} at {each['coordinates']}, {each['swizzle']}"
    for each in event.get("barriers", ()):
        yield f"{each['does']}: {each['barrier']}, phase {each['phase']}"
