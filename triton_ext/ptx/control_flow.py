"""The basic blocks of a kernel, in an order in which each comes after those that lead to it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from triton_ext.ptx.parse import Instruction, Kernel

_ENDS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class Block:
    """Instructions that are executed one after the other.

    Attributes:
        start, stop: the numbers of the instructions, `stop` excluded.
        before: the blocks that control comes from, as indices into `blocks_in_order`'s result;
            without the edges that go back to the head of a loop.
        is_irregular: the block is the target of a loop's edge, and some loop of the kernel has two
            entries: control may come here first from a block that is not among those before.
    """

    start: int
    stop: int
    before: tuple[int, ...]
    is_irregular: bool = False


def blocks_in_order(kernel: Kernel) -> tuple[Block, ...]:
    """The blocks in reverse postorder; those that are never reached come last.

    Compilers lay blocks out in other orders: a loop's latch may stand before its head.
    """
    instructions = kernel.instructions
    if not instructions:
        return ()
    targets = [_targets(kernel, instruction) for instruction in instructions]
    starts = {0, *itertools.chain.from_iterable(targets)}
    starts.update(
        number + 1
        for number, instruction in enumerate(instructions)
        if targets[number] or _is_end(instruction)
    )
    ordered = sorted(start for start in starts if start < len(instructions))
    index = {start: i for i, start in enumerate(ordered)}
    stops = [*ordered[1:], len(instructions)]
    successors = []
    for i, stop in enumerate(stops):
        last = instructions[stop - 1]
        found = [index[target] for target in targets[stop - 1] if target in index]
        goes_on = last.predicate or not (targets[stop - 1] or _is_end(last))
        if goes_on and i + 1 < len(ordered):
            found.append(i + 1)
        successors.append(found)
    order, roots = _reverse_postorder(successors)
    rank = {block: i for i, block in enumerate(order)}
    before: list[list[int]] = [[] for _ in order]
    back: list[tuple[int, int]] = []
    for i, block in enumerate(order):
        for successor in dict.fromkeys(successors[block]):
            if rank[successor] > i:
                before[rank[successor]].append(i)
            elif roots[rank[successor]] == roots[i]:
                back.append((i, rank[successor]))
    irregular = _irregular_targets(before, back, roots)
    return tuple(
        Block(ordered[block], stops[block], tuple(before[i]), i in irregular)
        for i, block in enumerate(order)
    )


def _irregular_targets(
    before: list[list[int]], back: list[tuple[int, int]], roots: list[int]
) -> set[int]:
    """The targets of back edges from what the same root reaches, where a loop has two entries.

    A back edge's target dominates its source, unless the loop can be entered elsewhere.
    """
    dominators = _DominatorTree(before)
    entered_twice = {
        roots[source] for source, target in back if dominators.meet(source, target) != target
    }
    return {target for _, target in back if roots[target] in entered_twice}


class _DominatorTree:
    """Which blocks lie on every path to a block, back edges aside.

    Each block has a second pointer, to an ancestor further up, so that a walk up is short (Myers,
    "An applicative random-access stack", 1983).
    """

    def __init__(self, before: list[list[int]]) -> None:
        self.parent = list(range(len(before)))
        self.jump = list(self.parent)
        self.depth = [0] * len(before)
        for block, sources in enumerate(before):
            if not sources:
                continue
            parent = sources[0]
            for source in sources[1:]:
                parent = self.meet(parent, source)
            far = self.jump[parent]
            even = self.depth[parent] - self.depth[far] == (
                self.depth[far] - self.depth[self.jump[far]]
            )
            self.parent[block] = parent
            self.jump[block] = self.jump[far] if even else parent
            self.depth[block] = self.depth[parent] + 1

    def meet(self, a: int, b: int) -> int:
        """The last block that lies on every path to both; `a` if there is none."""
        if self.depth[a] < self.depth[b]:
            a, b = b, a
        while self.depth[a] > self.depth[b]:
            a = self.jump[a] if self.depth[self.jump[a]] >= self.depth[b] else self.parent[a]
        while a != b and self.depth[a]:
            if self.jump[a] != self.jump[b]:
                a, b = self.jump[a], self.jump[b]
            else:
                a, b = self.parent[a], self.parent[b]
        return a


def _is_end(instruction: Instruction) -> bool:
    return instruction.opcode in _ENDS


def _targets(kernel: Kernel, instruction: Instruction) -> list[int]:
    """The instructions that a branch may go to."""
    name = instruction.opcode.split(".")[0]
    if name not in ("bra", "brx") or not instruction.operands:
        return []
    labels: tuple[str, ...] = instruction.operands[-1:]
    if name == "brx":
        labels = kernel.branch_targets.get(labels[0], ())
    found = (kernel.target(label, instruction.scope) for label in labels)
    return [number for number in found if number is not None]


def _reverse_postorder(successors: list[list[int]]) -> tuple[list[int], list[int]]:
    """From block 0, and then from each block that was not reached, in the order of the text.

    Returns:
        The blocks, and for each which one it was reached from.
    """
    order: list[int] = []
    roots: list[int] = []
    seen: set[int] = set()
    for root in range(len(successors)):
        if root in seen:
            continue
        seen.add(root)
        finished: list[int] = []
        stack = [(root, iter(successors[root]))]
        while stack:
            block, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                finished.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(successors[following])))
        order += reversed(finished)
        roots += [root] * len(finished)
    return order, roots
