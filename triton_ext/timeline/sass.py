"""What ptxas made of a kernel: instructions of the machine, for each line of its PTX.

The format of the control bits is that of Jia et al., "Dissecting the NVIDIA Volta GPU architecture
via microbenchmarking" (2018), section 2.1, which later GPUs keep. What ptxas hoists out of a loop
counts for nothing; nothing is done about loops that it unrolls.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from triton_ext.ptx.parse import Kernel

ON_CHIP = {
    r"SHFL": 24, r"MUFU|[IF]2[IF]|POPC|FLO|BREV": 20, r"S2U?R|R2UR|VOTE|REDUX|ELECT": 20,
    r"SYNCS\.PHASECHK": 50,
}  # fmt: skip
"""Cycles until a result can be read that a scoreboard guards, of what has no token in a record. By
microbenchmarks of an H200: the first, and the last (a pipeline's consumer, from the end of a
product to the next tiles, 117 cycles); the others are assumed."""
HELD = {r"MEMBAR\.\w+\.(GPU|SYS|VC)": 530, r"CGAERRBAR": 120}
"""Cycles that a warp cannot go on, of what no scoreboard guards: by microbenchmarks of an H100, a
plain fence.proxy.async takes 539, an arrival that releases to a cluster 660."""
READ = 17
"""Cycles until an instruction for memory has read its registers, so that they can be written:
stores of shared memory by one warp of an H200, one in 22 cycles."""
PIPES = ("ALU", "integer products", "special functions", "mma.sync")
"""The pipes of a quarter of an SM that a warp's instruction holds for more than a cycle."""
TURNS = {
    r"IMAD\.(HI|WIDE)|IDP": (0, 2, 0, 0),
    r"IMAD|IMUL": (0, 1, 0, 0),
    r"MUFU|[IF]2[IF]\b|FRND|POPC|FLO|BREV": (0, 0, 1, 0),
    r"[HI]MMA\.(168(16|32)|1688\.F32\.TF32)": (0, 0, 0, 1),
    r"[HI]MMA": (0, 0, 0, 0.5),
    r"P?LOP3|PRMT|V?IADD|[IF]SETP|[IF]?SEL\b|V?[IF]MNMX|VABSDIFF|SHF\b|SGXT|BMSK|LEA|IABS|F2FP|I2FP|CS2R"
    r"|MOV": (1, 0, 0, 0),
}  # fmt: skip
"""By opcode, how many turns of each pipe an instruction takes: of 2, 2, 8 and 6 cycles on sm_90 by
what ptxas has a warp wait between two of the same (`triton_ext.timeline.gpus` has the rates)."""
MMA_OPERATIONS = 2 * 16 * 8 * 16
"""The operations of a turn of the last pipe: m16n8k16 of 16-bit operands."""
NO_TURNS = (0.0,) * len(PIPES)
_TURNS = {re.compile(pattern): turns for pattern, turns in TURNS.items()}
_HELD = {re.compile(pattern): cycles for pattern, cycles in HELD.items()}
_SLOW = {re.compile(pattern): cycles for pattern, cycles in ON_CHIP.items()}
_LISTED = re.compile(
    r'nv_debug_ptx_txt", line (?P<line>\d+)$'
    r"|^(?P<label>\.L\w+):"
    r"|/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
    r"\s+/\* 0x[0-9a-f]+ \*/\s+/\* 0x(?P<control>[0-9a-f]+) \*/",
    re.MULTILINE,
)
_ONCE = re.compile(r"LD[GS]|ST[GS]|ATOM|RED|SHFL|MUFU|BAR|SYNCS|UTMA|[HIQDU]G?MMA|UTC")
_TARGET = re.compile(r"`\((\.L\w+)\)")
BARRIERS, NO_BARRIER = 6, 7


@dataclass(frozen=True)
class Cost:
    """What an instruction of PTX became.

    Attributes:
        issued: how many instructions of the machine.
        cycles: that a warp takes for them, which runs alone and waits for no memory.
        turns: that they take of each of `PIPES`.
    """

    issued: float
    cycles: float
    turns: tuple[float, ...] = NO_TURNS


def costs(listing: str, kernel: Kernel) -> dict[int, Cost]:
    """The cost of each line of a kernel's PTX of which instructions were made; none, if the listing
    has none.

    Of an instruction in a loop, what ptxas has hoisted out of it is left out; what it has unrolled
    counts once.
    """
    made: defaultdict[int, list[tuple[str, int, float]]] = defaultdict(list)
    for line, opcode, depth, cycles in _timed(listing):
        made[line].append((opcode, depth, cycles))
    loops = _loops(kernel)
    members: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for line in made:
        members[loops.get(line, ())].append(line)
    found = {}
    for around, lines in members.items():
        depth = min(len(around), max(each[1] for line in lines for each in made[line]))
        kept = {line: [each for each in made[line] if each[1] >= depth] for line in lines}
        kept = {line: many for line, many in kept.items() if many}
        copies = _copies(kept.values()) if around else 1
        for line, many in kept.items():
            turns = zip(*(turns_of(each[0]) for each in many), strict=True)
            found[line] = Cost(
                len(many) / copies,
                sum(each[2] for each in many) / copies,
                tuple(sum(each) / copies for each in turns),
            )
    return found


@functools.cache
def turns_of(opcode: str) -> tuple[float, ...]:
    """What an instruction of the machine takes of each of `PIPES`."""
    return next((turns for pattern, turns in _TURNS.items() if pattern.match(opcode)), NO_TURNS)


def _copies(lines: Iterable[Sequence[tuple[str, int, float]]]) -> int:
    """How often a loop's body is there, by what a line of PTX has once."""
    counts = [Counter(each[0] for each in made if _ONCE.match(each[0])) for made in lines]
    return statistics.median_low([max(count.values()) for count in counts if count] or [1])


def _loops(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """For each line that is in loops, where these begin: spans of branches backwards."""
    spans: dict[int, int] = {}
    for index, at in enumerate(kernel.instructions):
        target = kernel.target(at.operands[0], at.scope) if at.opcode.startswith("bra") else None
        if target is not None and target <= index:
            spans[target] = index
    return {
        at.line: tuple(first for first, last in spans.items() if first <= index <= last)
        for index, at in enumerate(kernel.instructions)
    }


def _around(index: int, loops: Sequence[tuple[int, int]]) -> int:
    return len({first for first, last in loops if first <= index <= last})


def _timed(listing: str) -> Iterator[tuple[int, str, int, float]]:
    """For each instruction: the line of PTX, the opcode, in how many loops it is, and the cycles
    from the issue of the one before to its own end, without what it waits for others to bring."""
    line, labels = 0, {}
    every: list[tuple[int, str, str, int]] = []
    for match in _LISTED.finditer(listing):
        if match["line"]:
            line = int(match["line"])
        elif match["label"]:
            labels[match["label"]] = len(every)
        elif match["opcode"] != "NOP":
            control = int(match["control"], 16) >> 41
            every.append((line, match["opcode"], match["operands"], control))
    loops = _backwards(every, labels)
    clock, ready = 0.0, [0.0] * 8
    for index, (line, opcode, _, control) in enumerate(every):
        stall, written, read = control & 15, control >> 5 & 7, control >> 8 & 7
        awaited = [ready[n] for n in range(BARRIERS) if control >> 11 >> n & 1]
        begin = max(clock, *awaited) if awaited else clock
        if written != NO_BARRIER:
            latency = next((c for pattern, c in _SLOW.items() if pattern.match(opcode)), 0)
            ready[written] = max(ready[written], begin + latency)
        ready[read] = max(ready[read], begin + READ)
        held = next((c for pattern, c in _HELD.items() if pattern.match(opcode)), 0)
        end = begin + max(stall, 1, held)
        yield line, opcode, _around(index, loops), end - clock
        clock = end


def _backwards(
    every: Sequence[tuple[int, str, str, int]], labels: Mapping[str, int]
) -> list[tuple[int, int]]:
    found = []
    for index, (_, opcode, operands, _) in enumerate(every):
        target = _TARGET.search(operands) if opcode.startswith("BRA") else None
        first = labels.get(target[1], index + 1) if target else index + 1
        if first <= index:
            found.append((first, index))
    return found
