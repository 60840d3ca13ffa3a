"""Two predicted runs side by side: which is faster, and where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.render.difference import Comparison, Row, rows_of

_SHOWN_WAITS = 12
"""How many of the locations where warps wait are shown: those that differ the most."""
_BARRIER = re.compile(r"the mbarrier at 0x[0-9a-f]+ \((.+)\)$")
_LEAST = 0.005
"""The share of the longer time below which nothing is shown."""


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f} us"


def _waits(timeline: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that the mean warp waits, by where and for what."""
    found: dict[str, float] = {}
    for each in timeline["stalls"]:
        where = each["place"].rpartition("/")[2]
        # two versions of a kernel have a barrier of one name at different addresses
        what = _BARRIER.sub(r"\1", each["what"])
        name = f"waits at {where}" + (f" for {what}" if what else "")
        found[name] = found.get(name, 0.0) + each["share"] * timeline["seconds"]
    return found


def _busy(timeline: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that each unit of an SM works."""
    units = timeline["utilisation"].items()
    return {f"{unit} busy": share * timeline["seconds"] for unit, share in units}


def _timed_rows(
    left: Mapping[str, float], right: Mapping[str, float], least: float
) -> list[tuple[float, Row]]:
    """Rows of times, that with the greatest difference first, and the differences."""
    found = []
    for name in dict.fromkeys([*left, *right]):
        one, other = left.get(name), right.get(name)
        if max(one or 0.0, other or 0.0) >= least:
            mine, theirs = _microseconds(one), _microseconds(other)
            difference = (other or 0.0) - (one or 0.0)
            found.append((difference, Row(name, mine, theirs, mine == theirs)))
    return sorted(found, key=lambda each: -abs(each[0]))


def compare_timelines(left: Mapping[str, Any], right: Mapping[str, Any]) -> Comparison:
    """Which of two predicted runs is faster, and where.

    Args:
        left, right: as `triton_ext.timeline.timeline.Timeline.as_object` gives them; with all
            stalls, as ``triton-ext run --timeline out.json`` writes them.

    Raises:
        LayoutError: something else.
    """
    try:
        return _compared_timelines(left, right)
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError):
        rule = "must be what `triton-ext run --timeline out.json` writes"
        raise LayoutError("timeline", "the JSON", rule) from None


def _compared_timelines(left: Mapping[str, Any], right: Mapping[str, Any]) -> Comparison:
    times = float(left["seconds"]), float(right["seconds"])
    least = _LEAST * max(times)
    waits = _timed_rows(_waits(left), _waits(right), least)[:_SHOWN_WAITS]
    busy = _timed_rows(_busy(left), _busy(right), least)
    described = (
        ("kernel", "kernel", str), ("GPU", "gpu", str), ("what binds", "bound", str),
        ("clock", "clock_hz", lambda hz: f"{hz / 1e6:.0f} MHz"), ("blocks", "blocks", str),
        ("blocks of an SM", "blocks_of_an_sm", str),
    )  # fmt: skip
    heads = [[(name, show(side[key])) for name, key, show in described] for side in (left, right)]
    one, other = map(_microseconds, times)
    total = Row("time", one, other, one == other)
    rows = (total, *rows_of(*heads), *(row for _, row in waits), *(row for _, row in busy))
    if all(row.same for row in rows):
        return Comparison("timeline", rows)
    return Comparison("timeline", rows, verdict=_verdict(times, waits, left, right))


def _verdict(
    times: tuple[float, float],
    waits: Sequence[tuple[float, Row]],
    left: Mapping[str, Any],
    right: Mapping[str, Any],
) -> str:
    """Which one is faster, where, and whether the model can tell."""
    shown = [_microseconds(each) for each in times]
    if shown[0] == shown[1]:
        return f"both take {shown[0]}"
    faster = "A" if times[0] < times[1] else "B"
    ratio = max(times) / min(times)
    text = f"{faster} is faster: {shown[0]} and {shown[1]}, {ratio:.2f} to 1"
    gained = [(change, row) for change, row in waits if (change > 0) == (faster == "A")]
    if gained and not gained[0][1].same:
        change, row = gained[0]
        text += f"; most of it: it {row.name}, {_microseconds(abs(change))} less"
    errors = [each["mean"] for side in (left, right) for each in side["known_errors"][:1]]
    if not errors:
        return f"{text}; how far the prediction is off was not measured"
    if ratio - 1 < max(errors):
        text += f"; the model's mean error is {max(errors):.1%}".replace("%", " %")
    return text
