"""Device time: CUDA graphs of many launches, replayed with the queue kept full."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

import torch

GRAPH_SECONDS = 1.5e-3
"""About how long one replay takes, if a launch is shorter than that."""
WARM_SECONDS = 0.4
"""How long is replayed before what counts. A GPU that was idle runs at its highest clock until its
power control takes hold, and then at a lower one (seen on an H100; a ratio moved by up to 15%)."""


def launches_in_graph(estimate: float, sets: int) -> int:
    """How many launches a graph holds.

    Args:
        estimate: about how long a launch takes, in seconds.
        sets: how many input sets the launches walk through.
    """
    count = max(1, min(64, int(GRAPH_SECONDS / estimate)))
    return max(count, sets) if estimate < 2e-4 else count


def graph_of(launch: Callable[[int], None], count: int) -> torch.cuda.CUDAGraph:
    """A graph of launches 0 to count - 1."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)  # whatever is set up at the first launch
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.disable()  # a kernel that it frees is unloaded, which no stream allows while it is captured
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for i in range(count):
                launch(i)
    finally:
        gc.enable()
    return graph


def replayed_seconds(
    graphs: Mapping[str, torch.cuda.CUDAGraph], rounds: int = 1
) -> dict[str, list[float]]:
    """How long the replays of each graph take, in every round.

    A round replays all in turn, and again in the reverse order; what counts for a graph is the mean
    of its two replays. So each is as often before as after the others, whose heat and whose load it
    gets; the next round begins with another one. Clock and power are those of a busy GPU: the first
    round is not timed, and the host runs ahead of the GPU, which does not pause between rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in graphs}
    order = list(graphs)
    pairs: list[tuple[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]]] = []
    for number in range(rounds + 1):
        found: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {x: [] for x in order}
        for name in [*order, *reversed(order)]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            found[name].append((start, end))
        if number:
            pairs += found.items()
        order = order[1:] + order[:1]
    torch.cuda.synchronize()
    for name, both in pairs:
        times[name].append(sum(start.elapsed_time(end) for start, end in both) / 2 * 1e-3)
    return times


def warm_up(graphs: Mapping[str, torch.cuda.CUDAGraph], seconds: float = WARM_SECONDS) -> None:
    """Replay the graphs in turn for so long, and leave the GPU at work for one more turn."""
    begin = time.perf_counter()
    while True:
        for graph in graphs.values():
            graph.replay()
        if time.perf_counter() - begin > seconds:
            return
        torch.cuda.synchronize()
