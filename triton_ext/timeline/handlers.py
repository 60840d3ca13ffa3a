"""What the recorder does about instructions that hand work to units, or wait for it: a function for
each name of `triton_ext.timeline.costs.HANDLED`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from triton_ext.emulator.state.block import Cta
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS
from triton_ext.timeline.recording import Block, Bringing, Recording
from triton_ext.timeline.trace import COMMIT, PRODUCT, TENSOR, TMEM, WAIT


def _product(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    cluster = now.clusters[cta.cluster.number]
    n, size, registers = now.kind.product
    token = -1
    for number in warps:
        warp = block.warps[number]
        if number % WARPGROUP_WARPS == 0:
            token = cluster.token(name="products (wgmma)")
            warp.add((PRODUCT, now.kind.at, n, size, registers, token))
        warp.open["wgmma"].append(token)


def _tensor_copy(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    kind = now.kind
    for number in warps:
        block.warps[number].add((TENSOR, kind.at, 0, 0, 1, kind.group, kind.columns))


def _tensor_commit(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    for number in warps:
        now.bringing = Bringing()
        block.warps[number].add((COMMIT, now.kind.at, now.bringing.tokens))


def _tensor_load(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    cluster, kind = now.clusters[cta.cluster.number], now.kind
    for number in warps:
        token = block.load(cluster, number, now.loaded)
        cluster.names[token] = "tensor memory"
        block.warps[number].add((TMEM, kind.at, kind.columns, token))


def _tensor_store(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    for number in warps:
        block.warps[number].add((TMEM, now.kind.at, now.kind.columns, -1))


def _tensor_wait(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    names = now.clusters[cta.cluster.number].names
    for number in warps:
        warp = block.warps[number]
        for token, _ in warp.loads:
            if names[token] == "tensor memory":
                warp.add((WAIT, now.kind.at, token))
        warp.loads = [each for each in warp.loads if names[each[0]] != "tensor memory"]


def _allocate(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    now.columns = max(now.columns, now.kind.columns)


def _commit(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    queue = _queue(now)
    for number in warps:
        warp = block.warps[number]
        warp.groups[queue].append(warp.open.pop(queue, []))


def _queue(now: Recording) -> str:
    text = now.text.lines[now.kind.at].text
    return "wgmma" if "wgmma" in text else "bulk" if "bulk" in text else "async"


def _await_groups(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    queue, kind = _queue(now), now.kind
    for number in warps:
        warp = block.warps[number]
        groups = warp.groups[queue]
        tokens: list[int] = []
        while len(groups) > kind.keep:
            tokens += groups.popleft()
        if queue == "bulk":  # pairs: of the read, and of the write
            tokens = tokens[0 if kind.reads_only else 1 :: 2]
        for token in tokens[-1:] if queue == "wgmma" else tokens:
            warp.add((WAIT, kind.at, token))


def _await_all(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    _commit(now, cta, block, warps)
    _await_groups(now, cta, block, warps)


def _await_kernel(now: Recording, cta: Cta, block: Block, warps: Iterable[int]) -> None:
    cluster = now.clusters[cta.cluster.number]
    if cluster.before < 0:
        cluster.before = cluster.token(name="the kernel before")
    for number in warps:
        block.warps[number].add((WAIT, now.kind.at, cluster.before))


HANDLERS: dict[str, Callable[[Recording, Cta, Block, Iterable[int]], None]] = {
    "product": _product,
    "commit": _commit,
    "await_groups": _await_groups,
    "await_all": _await_all,
    "tensor_copy": _tensor_copy,
    "tensor_commit": _tensor_commit,
    "tensor_load": _tensor_load,
    "tensor_store": _tensor_store,
    "tensor_wait": _tensor_wait,
    "allocate": _allocate,
    "await_kernel": _await_kernel,
}
