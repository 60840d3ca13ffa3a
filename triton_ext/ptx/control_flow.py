"""The basic blocks of a kernel: an order in which each comes after those that lead to it, and where
the ways from a branch come together again.
"""

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
    graph = _Graph.of(kernel)
    successors = graph.successors
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
        Block(graph.starts[block], graph.stops[block], tuple(before[i]), i in irregular)
        for i, block in enumerate(order)
    )


def meeting_points(kernel: Kernel) -> dict[int, int]:
    """Where the ways from each conditional branch meet: at its immediate post-dominator, the first
    block that lies on every way from it to the kernel's end.

    Returns:
        The number of the block's first instruction, for that of the branch. Ways that meet only at
        the end, or (as one of them never ends) nowhere, have none; one to a ``trap`` is none.
    """
    graph = _Graph.of(kernel)
    # Node 0 is the end, and each block has its index plus one.
    after = [[], *([each + 1 for each in found] for found in graph.successors)]
    before: list[list[int]] = [[] for _ in after]
    for block, stop in enumerate(graph.stops):
        last = kernel.instructions[stop - 1]
        returns = _is_end(last) and not last.opcode.startswith("trap")
        falls = last.predicate or not (_is_end(last) or _targets(kernel, last))
        if returns or (falls and stop == len(kernel.instructions)):
            after[block + 1].append(0)
        for target in after[block + 1]:
            before[target].append(block + 1)
    order, roots = _reverse_postorder(before)
    parents = _immediate_dominators([n for n, r in zip(order, roots, strict=True) if not r], after)
    return {
        stop - 1: graph.starts[parents[block + 1] - 1]
        for block, stop in enumerate(graph.stops)
        if len(graph.successors[block]) > 1 and parents.get(block + 1)
    }


def _immediate_dominators(order: list[int], before: list[list[int]]) -> dict[int, int]:
    """The last node that lies on every way from the root to each (Cooper, Harvey, Kennedy, "A
    Simple, Fast Dominance Algorithm", 2001).

    Args:
        order: the nodes in reverse postorder, the root first.
        before: those that ways come from, of each node.
    """
    rank = {node: number for number, node in enumerate(order)}
    parents = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [each for each in before[node] if each in parents]
            found = known[0]
            for other in known[1:]:
                while found != other:
                    if rank[found] > rank[other]:
                        found = parents[found]
                    else:
                        other = parents[other]
            changed |= parents.get(node) != found
            parents[node] = found
    return parents


@dataclass(frozen=True)
class _Graph:
    """The basic blocks in the order of the text.

    Attributes:
        starts, stops: the numbers of their instructions, `stops` excluded.
        successors: the blocks that control goes to from each.
    """

    starts: list[int]
    stops: list[int]
    successors: list[list[int]]

    @classmethod
    def of(cls, kernel: Kernel) -> _Graph:
        instructions = kernel.instructions
        if not instructions:
            return cls([], [], [])
        targets = [_targets(kernel, instruction) for instruction in instructions]
        found = {0, *itertools.chain.from_iterable(targets)}
        found.update(
            number + 1
            for number, instruction in enumerate(instructions)
            if targets[number] or _is_end(instruction)
        )
        starts = sorted(start for start in found if start < len(instructions))
        index = {start: i for i, start in enumerate(starts)}
        stops = [*starts[1:], len(instructions)]
        successors = []
        for i, stop in enumerate(stops):
            last = instructions[stop - 1]
            following = [index[target] for target in targets[stop - 1] if target in index]
            goes_on = last.predicate or not (targets[stop - 1] or _is_end(last))
            if goes_on and i + 1 < len(starts):
                following.append(i + 1)
            successors.append(following)
        return cls(starts, stops, successors)


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
    return instruction.opcode.split(".")[0] in _ENDS


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
