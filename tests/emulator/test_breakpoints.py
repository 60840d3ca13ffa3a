"""`break_at`: the memories of a block at a line, beside what the host put into its tensors."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sites import SUPPORT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext.emulator.errors import LaunchError  # noqa: E402
from triton_ext.errors import LayoutError  # noqa: E402

EXAMPLES = SUPPORT.parent.parent / "examples"
ENCODING = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"


def example(name, text):
    """An example, its operands, and the line of the source that has a text."""
    sys.path.insert(0, str(EXAMPLES))
    module = importlib.import_module(name)
    lines = Path(module.__file__).read_text().splitlines()
    [line] = [number for number, each in enumerate(lines, 1) if text in each]
    torch.manual_seed(0)
    a, b = torch.randn(module.M, module.K).half(), torch.randn(module.K, module.N).half()
    return module, a.numpy(), b.numpy(), f"{name}.py:{line}"


def test_tiles_of_tma_are_unswizzled():
    """At step i the ring has the tiles of steps i and i + 1: pieces of A and B, bit for bit."""
    module, a, b, place = example("hopper_matmul", "= warpgroup_mma(tile")
    found = []

    def look(stop):
        tiles = stop.tiles(np.float16)
        raw = stop.shared(tiles[0].address, (64, 64), np.float16, ENCODING)
        found.append((stop.block, stop.warps, [each.values for each in tiles], raw))
        for wrong in (lambda: stop.shared(16, (4,), np.int8), stop.tensor_memory):
            with pytest.raises(LaunchError):
                wrong()
        for tile in tiles:  # the name of an address says where its byte is in the tile
            raw_bytes = stop.shared(tile.address, (8192,), np.uint8)
            for offset in range(0, 8192, 331):
                named = re.fullmatch(
                    rf"row (\d+), byte (\d+), of the box of the TMA copy at {tile.source}",
                    stop.name(tile.address + offset),
                )
                row, byte = map(int, named.groups())
                assert raw_bytes[offset] == tile.values.view(np.uint8)[row, byte]
        assert stop.name(tiles[-1].address + 8192 + 8) == ""
        with pytest.raises(LayoutError):
            stop.shared(tiles[0].address, (64, 64), np.float16, "no layout")

    with triton_ext.emulate("sm_90", cuda_on_host=True) as gpu:
        here = gpu.break_at(place, look)
        never = gpu.break_at("other_matmul.py:1", look)
        with pytest.raises(LaunchError, match=r"kernel\.py:31"):
            gpu.break_at("hopper_matmul.py", look)
        module.main("")
    assert (here.hits, never.hits, len(found)) == (4, 0, 4)
    for step, (block, warps, tiles, raw) in enumerate(found):
        assert (block, warps) == ((0, 0, 0), [0, 1, 2, 3])
        for number in {step, min(step + 1, 3)}:
            part = slice(number * 64, number * 64 + 64)
            assert any(np.array_equal(each, a[:, part]) for each in tiles)
            assert any(np.array_equal(each, b[part]) for each in tiles)
        assert np.array_equal(raw, tiles[0])


def test_tensor_memory_holds_the_accumulator():
    module, a, b, place = example("blackwell_matmul", "values = accumulator.load(")
    seen = []
    with triton_ext.emulate("sm_100", cuda_on_host=True) as gpu:
        gpu.break_at(place, lambda stop: seen.append(stop.tensor_memory(0, module.N)))
        module.main("")
    expected = a.astype(np.float32) @ b.astype(np.float32)
    assert seen
    assert all(np.allclose(each, expected, atol=1e-2) for each in seen)
