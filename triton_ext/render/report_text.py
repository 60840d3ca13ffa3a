"""A kernel's shared memory in words: the report of the pass `report-layouts`, for a terminal.

It is made from the report alone, as ``layout_report.schema.json`` describes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triton_ext.render.conversion_text import conversion_lines
from triton_ext.render.words import by, counted


def location_text(location: Mapping[str, Any] | None) -> str:
    """A location as ``file:line``."""
    return f"{location['file']}:{location['line']}" if location else "unknown line"


def _describe_move(move: Mapping[str, Any]) -> str:
    """A move in words: its instructions, and what the banks make of them."""
    if move["error"]:
        return f"not predicted: {move['error']}"
    many = counted(move["instructions_per_warp"], "instruction")
    said = f"{move['instruction']}, {many} a warp"
    if move["wavefronts"] == move["ideal_wavefronts"]:
        return f"{said}, no bank conflict"
    return (
        f"{said}, {move['degree']}-way bank conflict: {move['wavefronts']} wavefronts instead of"
        f" {move['ideal_wavefronts']}"
    )


def _describe_mma(mma: Mapping[str, Any]) -> str:
    """An MMA's operand in words."""
    if mma["error"]:
        return f"operand {mma['operand']}: {mma['error']}"
    width = f"{mma['swizzle']}-byte swizzle" if mma["swizzle"] else "no swizzle"
    said = (
        f"operand {mma['operand']}, {mma['major']}-major, {width}:"
        f" {counted(mma['subtiles'], 'subtile')} of {by(mma['instruction'])},"
        f" descriptor {mma['descriptor']}"
    )
    if (mma["read_wavefronts"] or 1) > 1:
        said += f"; 8 rows of 16 bytes take {mma['read_wavefronts']} wavefronts"
    return said


def _describe_copy(copy: Mapping[str, Any]) -> str:
    """A TMA copy in words."""
    if copy["error"]:
        return f"TMA {copy['direction']}: {copy['error']}"
    boxes = counted(copy["boxes"], "box", "boxes")
    return f"TMA {copy['direction']}: {boxes} of {by(copy['box'])}, {copy['box_bytes']} bytes each"


def uses_of(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(location, text) for everything that touches a value; the same once, with its count."""
    said: Counter[tuple[str, str]] = Counter()
    for mma in value["mmas"]:
        name = mma["operation"].partition(".")[2]
        said[location_text(mma["location"]), f"{name}: {_describe_mma(mma)}"] += 1
    for move in value["moves"]:
        name = move["operation"].partition(".")[2]
        said[location_text(move["location"]), f"{name}: {_describe_move(move)}"] += 1
    for copy in value["copies"]:
        said[location_text(copy["location"]), _describe_copy(copy)] += 1
    if not value["barrier"]:
        for other in value["others"]:
            said[location_text(other["location"]), other["operation"].partition(".")[2]] += 1
    for (location, text), count in said.items():
        yield location, text + (f" (x {count})" if count > 1 else "")


def _bases(layout: Mapping[str, Any]) -> Iterator[str]:
    for dim in layout["in_dims"]:
        points = " ".join(f"({','.join(map(str, basis))})" for basis in dim["bases"])
        yield f"{dim['name']} 1, 2, 4, ...: {points or 'one'}"


def value_headline(value: Mapping[str, Any]) -> str:
    """Shape, element type and encoding of a value in a few words."""
    buffers = f"{value['buffers']} x " if value["buffers"] > 1 else ""
    kind = value["encoding"].partition("<")[0].removeprefix("#ttg.")
    if value["swizzle"] is not None:
        kind = f"{value['swizzle']}-byte swizzle" if value["swizzle"] else "no swizzle"
    if value["atom"]:
        kind += f", dim{value['atom']['contiguous_dim']} contiguous"
    return f"{buffers}{by(value['shape'])} {value['element']}, {kind}"


def _value_lines(value: Mapping[str, Any]) -> Iterator[str]:
    yield f"{value['name']}  {location_text(value['location'])}"
    yield f"    {value_headline(value)}: {value['bytes']:,} bytes, alignment {value['alignment']}"
    yield f"    {value['encoding']}"
    if value["atom"]:
        atom = value["atom"]
        yield f"    atom: {atom['rows']} rows of {atom['row_bytes']} bytes, {atom['swizzle']}"
    if value["layout"]:
        yield from (f"    {line}" for line in _bases(value["layout"]))
    if value["error"]:
        yield f"    no layout: {value['error']}"
    for location, text in uses_of(value):
        yield f"    {location}  {text}"


def summary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The kernel, its totals, and its bank conflicts, the worst first (indented)."""
    shared = report["shared"]
    cluster = report["blocks_of_cluster"]
    blocks = f", clusters of {cluster} blocks" if cluster > 1 else ""
    yield f"{report['kernel']}: sm_{report['arch']}, {counted(report['warps'], 'warp')}{blocks}"
    values = f"{shared['values_bytes']:,} bytes of values"
    if shared["bytes"] is None:
        yield f"shared memory: {values}, of at most {shared['limit']:,}"
    else:
        part = 100 * shared["bytes"] / shared["limit"]
        yield (
            f"shared memory: {shared['bytes']:,} of {shared['limit']:,} bytes ({part:.0f} %),"
            f" for {values}; room for {counted(shared['blocks_per_sm'], 'block')} a multiprocessor"
        )
    moves = [move for value in report["values"] for move in value["moves"]]
    bad = [move for move in moves if move["degree"] and move["degree"] > 1]
    unknown = sum(1 for move in moves if move["error"])
    if moves:
        said = f"{len(bad)} of {counted(len(moves), 'register move')} with bank conflicts"
        yield said + (f", {unknown} not predicted" if unknown else "")
    yield from _conversion_summary(report)
    for move in sorted(bad, key=lambda each: each["ideal_wavefronts"] - each["wavefronts"]):
        yield f"    {location_text(move['location'])}  {move['direction']}: {_describe_move(move)}"


def _conversion_summary(report: Mapping[str, Any]) -> Iterator[str]:
    converted = report["conversions"]
    if not converted:
        return
    ways = Counter((each["conversion"] or {"way": "not predicted"})["way"] for each in converted)
    said = ", ".join(f"{count} by {way}" for way, count in ways.items())
    yield f"{counted(len(converted), 'layout conversion')}: {said}"


def converted_lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(place, words) for each layout conversion, then for what the PTX has at each line."""
    for each in report["conversions"]:
        place, what = location_text(each["location"]), f"{by(each['shape'])} {each['element']}"
        if each["conversion"] is None:
            yield place, f"{what}: not predicted: {each['error']}"
            continue
        first, *rest = conversion_lines(each["conversion"])
        yield place, f"{what} {first}"
        yield from (("", line) for line in rest)
    verdicts = {True: "as predicted", None: "other operations use them, too"}
    for line in report["lines"] or ():
        have = ", ".join(f"{count} x {name}" for name, count in line["counted"].items())
        verdict = verdicts.get(line["agrees"])
        if verdict is None:
            wanted = ", ".join(f"{count} x {name}" for name, count in line["predicted"].items())
            verdict = f"predicted were {wanted or 'none'}"
        if have or line["predicted"]:
            yield location_text(line["location"]), f"in the PTX: {have or 'none'} ({verdict})"


def _conversion_text(report: Mapping[str, Any]) -> Iterator[str]:
    found = list(converted_lines(report))
    if found:
        yield "layout conversions, and what the PTX has at the lines of moves:"
    for place, words in found:
        yield f"    {place}  {words}" if place else f"      {words}"


def _tensor_lines(values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if values:
        known = [value["columns"] for value in values if value["columns"]]
        yield f"tensor memory: {sum(known)} columns in {counted(len(values), 'value')}"
    for value in values:
        size = f", {value['columns']} columns" if value["columns"] else ""
        block = f", blocks of {value['block_m']}x{value['block_n']}" if value["block_m"] else ""
        yield (
            f"    {value['name']}  {location_text(value['location'])}  {by(value['shape'])}"
            f" {value['element']}{block}{size}"
        )


def _ptx_lines(mmas: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    if not mmas:
        return
    yield "in the PTX (descriptors without start addresses):"
    for mma in mmas:
        known = ", ".join(
            f"{operand} {value or 'not known'}" for operand, value in mma["descriptors"].items()
        )
        opcode = mma["opcode"].replace(".sync.aligned", "")
        known = known and f"  {known}"
        yield f"    {location_text(mma['location'])}  {mma['count']} x {opcode}{known}"


def report_text(report: Mapping[str, Any]) -> str:
    """The report for a terminal: totals and conflicts first, then the values, the largest first."""
    lines = list(summary_lines(report))
    for value in report["values"]:
        if not value["barrier"]:
            lines += ["", *_value_lines(value)]
    barriers = [value for value in report["values"] if value["barrier"]]
    if barriers:
        size = sum(value["bytes"] for value in barriers)
        lines += ["", f"{counted(len(barriers), 'value')} of mbarriers: {size} bytes"]
    for more in (
        _conversion_text(report),
        _tensor_lines(report["tensor_memory"]),
        _ptx_lines(report["ptx_mmas"]),
    ):
        found = list(more)
        lines += ["", *found] if found else []
    return "\n".join(lines)
