"""A layout conversion as data, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triton_ext.hardware.conversions import PlannedConversion
from triton_ext.hardware.register_moves import PlannedMove
from triton_ext.hardware.staging import Staging
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.words import counted

_WAYS = {
    "nothing": "nothing to do: each register stays as it is",
    "registers": "within each thread: registers change places, nothing is moved",
    "shuffles": "within each warp, by shuffles",
    "shared memory": "through shared memory",
    "cluster": "through the shared memory of several blocks",
}


def _move_object(move: PlannedMove, *, modelled: bool = True) -> dict[str, Any]:
    pattern = move.pattern
    return {
        "instruction": move.mnemonic,
        "instructions_per_warp": pattern.instructions,
        "wavefronts": pattern.wavefronts if modelled else None,
        "ideal_wavefronts": pattern.ideal_wavefronts if modelled else None,
    }


def conversion_object(planned: PlannedConversion) -> dict[str, Any]:
    """A conversion as JSON-able data: ``conversion`` in ``layout_report.schema.json``."""
    scratch = planned.scratch
    return {
        "way": planned.way,
        "bytes": planned.bytes,
        "warps": planned.warps,
        "shuffles_per_warp": planned.shuffles,
        "scratch": scratch
        and {
            "encoding": str(scratch.encoding),
            "bytes": scratch.bytes,
            "rounds": scratch.rounds,
            "within_warps": scratch.within_warps,
            "store": _move_object(scratch.store),
            "load": _move_object(scratch.load, modelled=planned.way != "cluster"),
        },
    }


def _move_words(move: Mapping[str, Any]) -> str:
    said = f"{move['instruction']}, {counted(move['instructions_per_warp'], 'instruction')} a warp"
    if move["wavefronts"] is None:
        return f"{said}, the banks of other blocks not modelled"
    if move["wavefronts"] == move["ideal_wavefronts"]:
        return f"{said}, {move['wavefronts']:,} wavefronts, no bank conflict"
    return (
        f"{said}, bank conflicts: {move['wavefronts']:,} wavefronts instead of"
        f" {move['ideal_wavefronts']:,}"
    )


def conversion_lines(conversion: Mapping[str, Any]) -> Iterator[str]:
    """A conversion in words: how it is done, and its instructions."""
    scratch, size = conversion["scratch"], f"{conversion['bytes']:,} bytes"
    said = _WAYS[conversion["way"]]
    if conversion["shuffles_per_warp"]:
        said += f": {size}, {conversion['shuffles_per_warp']} shfl.sync a warp"
    if scratch is None:
        yield said
        return
    rounds = f", in {scratch['rounds']} rounds" if scratch["rounds"] > 1 else ""
    waits = "each warp for itself" if scratch["within_warps"] else "all warps wait for each other"
    yield f"{said}: {size} through {scratch['bytes']:,}{rounds}, {waits}"
    for name in ("store", "load"):
        yield f"  {name}: {_move_words(scratch[name])}"


def staging_lines(found: Sequence[Staging], most: int = 5) -> Iterator[str]:
    """The encodings in between, those with the fewest wavefronts first."""
    for each in found[:most]:
        yield (
            f"  {each.wavefronts:,} wavefronts, {each.instructions} instructions a warp"
            f" ({each.store.mnemonic}, {each.load.mnemonic}): {each.encoding}"
        )


def changed_bits(source: LinearLayout, target: LinearLayout) -> Iterator[str]:
    """Which bits of the target's registers, lanes and warps are others in the source."""
    held = {
        basis: f"bit {i} of the {name}"
        for name, bases in source.bases.items()
        for i, basis in enumerate(bases)
        if any(basis)
    }
    for name, bases in target.bases.items():
        for i, basis in enumerate(bases):
            own = f"bit {i} of the {name}"
            if any(basis) and held.get(basis) != own:
                yield f"{own} is {held.get(basis, 'in no thread')} before: {_step(basis)}"


def _step(basis: Sequence[int]) -> str:
    (moved,) = (f"{value} along dim{dim}" for dim, value in enumerate(basis) if value)
    return moved
