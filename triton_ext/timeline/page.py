"""A timeline as Chrome's trace format, and as one self-contained HTML page."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from triton_ext.timeline.replay import Span
from triton_ext.timeline.timeline import Timeline
from triton_ext.timeline.trace import COPY, NAMES, WAIT, Trace

UNIT_ORDER = ("TMA loads", "tensor cores", "TMA stores", "loads")


def _lanes(spans: list[Span]) -> list[tuple[int, int | str]]:
    """All lanes, block by block: the units first, then the warps."""

    def key(lane: tuple[int, int | str]) -> tuple[int, int, int]:
        block, who = lane
        if isinstance(who, str):
            return block, 0, UNIT_ORDER.index(who)
        return block, 1, who

    return sorted({span.lane for span in spans}, key=key)


def _name(who: int | str) -> str:
    return who if isinstance(who, str) else f"warp {who}"


def chrome(timeline: Timeline) -> str:
    """JSON in Chrome's trace format: a process a block, a thread a warp or unit; microseconds.

    ui.perfetto.dev and chrome://tracing open it; ``triton-ext diff`` compares two of them, by what
    ``otherData`` has: `Timeline.as_object` with all stalls.
    """
    result = timeline.spans()
    scale = 1e6 / timeline.clock
    events: list[dict[str, Any]] = []
    numbers = {lane: number for number, lane in enumerate(_lanes(result.spans))}
    for (block, who), number in numbers.items():
        events.append(_named("process_name", block, 0, f"block {block} of the SM"))
        events.append(_named("thread_name", block, number, _name(who)))
    for span in result.spans:
        line = timeline.trace.lines[span.at]
        name = f"waits for {span.detail}" if span.what == WAIT else NAMES[span.what]
        events.append(
            {
                "ph": "X", "pid": span.lane[0], "tid": numbers[span.lane], "name": name,
                "cat": NAMES[span.what], "ts": round(span.begin * scale, 4),
                "dur": round((span.end - span.begin) * scale, 4),
                "args": {"instruction": line.text, "source": line.source, "what": span.detail},
            }
        )  # fmt: skip
    other = timeline.as_object(stalls=None)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other})


def _named(kind: str, block: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": block, "tid": thread, "name": kind, "args": {"name": name}}


def _loads(trace: Trace) -> dict[int, str]:
    """What each instruction that starts TMA loads brings, for people: "a, kernel.py:31"."""
    found: dict[int, str] = {}
    for cluster in trace.clusters.values():
        for item in cluster.items():
            if item[0] == COPY and item[1] not in found:
                memory = trace.memories[item[5]].name if item[5] >= 0 else "shared memory"
                found[item[1]] = f"{memory}, {trace.lines[item[1]].location.rpartition('/')[2]}"
    return dict(sorted(found.items()))


def html(timeline: Timeline) -> str:
    """One page with all of it, that needs no network: zoom, search, and what is below the mouse."""
    result = timeline.spans()
    lanes = _lanes(result.spans)
    numbers = {lane: number for number, lane in enumerate(lanes)}
    details: dict[str, int] = {}
    rows = [
        [
            numbers[span.lane], round(span.begin), round(span.end), span.what, span.at,
            details.setdefault(span.detail, len(details)),
        ]
        for span in sorted(result.spans, key=lambda span: span.begin)
    ]  # fmt: skip
    data = {
        "lanes": [[block, _name(who)] for block, who in lanes],
        "spans": rows,
        "details": list(details),
        "kinds": NAMES,
        "wait": WAIT,
        "copy": COPY,
        "loads": _loads(timeline.trace),
        "lines": [[line.text, line.source] for line in timeline.trace.lines],
        "cycles": result.cycles,
        "megahertz": timeline.clock / 1e6,
        "summary": timeline.lines(),
        "kernel": timeline.trace.name,
    }
    text = files("triton_ext.timeline").joinpath("page.html").read_text(encoding="utf-8")
    return text.replace("/*DATA*/", json.dumps(data).replace("</", "<\\/"))
