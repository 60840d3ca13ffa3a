"""A pytest plugin: what a test launches on the emulator is launched on the GPU, too.

    PYTHONPATH=tests/support python -m pytest -p silicon.replay --replay gpu --replay-json FILE \
        tests/emulator/test_tcgen05.py

Each launch by ``run_ptx`` of a test's module that the emulator takes without a fault is repeated
there, with the same PTX and the same arguments, and compared bit by bit. The test goes on with the
GPU's outputs, so that its own oracle judges those; it alone does where the bits may differ: after
approximations, and what atomic operations return. (PTX for another architecture is compiled for
this one; then the test keeps the emulator's, and what the driver's compiler refuses is no launch.)
``--replay lazy`` stands for a GPU where there is none: the emulator, under another schedule.

FILE counts the launches in which an instruction takes part, names those that differ, says what was
refused, and holds what tests report by ``record_property("rounding", ...)``.
"""

from __future__ import annotations

import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_ext.emulator import EmulationError, run_ptx
from triton_ext.emulator.instructions import OPCODES
from triton_ext.hardware.tensor_map import TensorMap
from triton_ext.ptx.parse import parse_ptx

REFUSED = "GpuError: cuModuleLoadDataEx: "
INEXACT = re.compile(r"\.approx|\batom\.")
SECONDS = 30
"""How long a launch may take: it hangs then."""
TARGET = re.compile(r"(?<=\.target )sm_\w+")


@dataclass
class Launch:
    """A launch, with its own copies of the arrays and the addresses that they had."""

    ptx: str
    options: dict[str, Any]
    arguments: list[Any]
    addresses: list[int | None]

    @staticmethod
    def of(ptx: str, options: dict[str, Any]) -> Launch:
        given = options.pop("args")
        addresses = [each.ctypes.data if isinstance(each, np.ndarray) else None for each in given]
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in given]
        return Launch(ptx, options, copies, addresses)

    def placed(self) -> list[Any]:
        """The arguments, with tensor maps of where the copies are."""

        def moved(value: Any) -> Any:
            if not isinstance(value, TensorMap):
                return value
            for start, array in zip(self.addresses, self.arguments, strict=True):
                if start is not None and start <= value.global_address < start + array.nbytes:
                    offset = value.global_address - start
                    return replace(value, global_address=array.ctypes.data + offset)
            raise ValueError("a tensor map of memory that is no argument")

        return [moved(each) for each in self.arguments]

    def arrays(self) -> list[np.ndarray]:
        return [each for each in self.arguments if isinstance(each, np.ndarray)]

    def emulated(self, **options: Any) -> list[np.ndarray]:
        run_ptx(self.ptx, args=self.placed(), **{**self.options, **options})
        return self.arrays()

    def on_gpu(self) -> list[np.ndarray]:
        from benchmarks.driver import run_on_gpu

        named = {"grid": 1, "block": 1, **self.options}
        kept = ("grid", "block", "cluster", "dynamic_smem_bytes")
        [only] = [each.name for each in parse_ptx(self.ptx).kernels if each.is_entry]
        chosen = {name: named[name] for name in kept if name in named}
        run_on_gpu(self.ptx, named.get("kernel") or only, args=self.placed(), **chosen)
        return self.arrays()


def _serve(connection: Any) -> None:
    """Launch what comes, until a fault, after which the process's context is of no use."""
    while True:
        launch: Launch = connection.recv()
        try:
            connection.send(launch.on_gpu())
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return


class Gpu:
    """A process that launches on the GPU; after a fault, or if it hangs, another one."""

    def __init__(self) -> None:
        self._process: Any = None

    def __call__(self, launch: Launch) -> list[np.ndarray] | str:
        """The arrays afterwards, or what went wrong."""
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._connection.send(launch)
            found: list[np.ndarray] | str = f"it did not end in {SECONDS} s"
            if self._connection.poll(SECONDS):
                found = self._connection.recv()
        except (EOFError, OSError):
            found = "its process ended"
        if isinstance(found, str):
            self._process.kill()
            self._process.join()
        return found


@dataclass
class Replay:
    """What was launched twice.

    Attributes:
        gpu: launches elsewhere; None: on the emulator, under `schedule`.
        target: of the GPU, as ``sm_90a``.
        done: for each launch that was compared what differs, "" for nothing.
    """

    gpu: Gpu | None
    schedule: str
    target: str
    done: dict[bytes, str] = field(default_factory=dict)
    outputs: dict[bytes, list[np.ndarray]] = field(default_factory=dict)
    same: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    different: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    rounding: dict[str, Any] = field(default_factory=dict)

    def run(self, test: str, ptx: str, **options: Any) -> Any:
        """As `run_ptx`."""
        launch = Launch.of(ptx, dict(options))
        given: Sequence[Any] = options["args"]
        result = run_ptx(ptx, **options)
        plain = (int, float, bytes, np.generic, np.ndarray, TensorMap)
        if options.get("buffers") or not all(isinstance(each, plain) for each in given):
            return result  # addresses in memory, which would have to be others there
        if not launch.arrays():
            return result
        own = TARGET.search(ptx)
        native = own is not None and own[0] == self.target
        launch.ptx = TARGET.sub(self.target, ptx)
        key = repr((launch.ptx, options.get("grid"), options.get("block"))).encode()
        key += b"".join(each.tobytes() for each in launch.arrays())
        if key not in self.done:
            self.compare(test, key, launch)
        if native and key in self.outputs:
            kept = (each for each in given if isinstance(each, np.ndarray))
            for array, found in zip(kept, self.outputs[key], strict=True):
                array[...] = found
        return result

    def compare(self, test: str, key: bytes, launch: Launch) -> None:
        """Launch on both, and note what differs."""
        other = Launch.of(launch.ptx, {**launch.options, "args": launch.arguments})
        other.addresses = launch.addresses
        try:
            expected = launch.emulated()
        except EmulationError:
            return  # it is for another architecture
        if self.gpu is None:
            found: list[np.ndarray] | str = other.emulated(schedule=self.schedule)
        else:
            found = self.gpu(other)
        if isinstance(found, str) and found.startswith(REFUSED):
            self.refused.setdefault(test, found.removeprefix(REFUSED)[:400])
            return
        names = {name for name in map(instruction_of, opcodes(launch.ptx)) if name}
        self.launches.update(names)
        if isinstance(found, str):
            self.done[key] = found
        else:
            self.outputs[key] = found
            exact = not INEXACT.search(launch.ptx)
            wrong = [
                f"{int((a.view(np.uint8) != b.view(np.uint8)).sum())} of {a.nbytes} bytes"
                for a, b in zip(expected, found, strict=True)
                if exact and a.tobytes() != b.tobytes()
            ]
            self.done[key] = f"{', '.join(wrong)} differ" if wrong else ""
        if self.done[key]:
            self.different.setdefault(test, self.done[key][:400])
        else:
            self.same.update(names)


def opcodes(ptx: str) -> set[str]:
    """The opcodes of a module, with their modifiers."""
    found = re.findall(r"^\s*(?:@!?%?\w+\s+)?([a-z][a-z0-9_]*[\w.:]*)\s", ptx, re.MULTILINE)
    return set(found)


def instruction_of(opcode: str) -> str:
    """The emulator's name of an opcode, and the kind of a ``tcgen05.mma``; "" if it is none."""
    parts = opcode.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    name = next((name for name in names if name in OPCODES), "")
    return " ".join([name, *(part for part in parts if part.startswith("kind::"))])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--replay", default="lazy", help="gpu, or a schedule of the emulator")
    parser.addoption("--replay-target", default="sm_100a", help="what PTX is compiled for")
    parser.addoption("--replay-json", type=Path, required=True)


REPLAY = pytest.StashKey[Replay]()


def pytest_configure(config: pytest.Config) -> None:
    where = config.getoption("--replay")
    config.stash[REPLAY] = Replay(
        Gpu() if where == "gpu" else None, where, config.getoption("--replay-target")
    )


@pytest.fixture(autouse=True)
def replayed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module's `run_ptx` launches twice."""
    replay = request.config.stash[REPLAY]
    name = request.node.nodeid.rpartition("/")[2]

    def run(ptx: str, **options: Any) -> Any:
        return replay.run(name, ptx, **options)

    if hasattr(request.module, "run_ptx"):
        monkeypatch.setattr(request.module, "run_ptx", run)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _reports.append(report)


_reports: list[pytest.TestReport] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    replay = session.config.stash[REPLAY]
    for report in _reports:
        name = report.nodeid.rpartition("/")[2]
        if report.failed:
            text = str(report.longrepr).strip().splitlines() or [""]
            replay.different.setdefault(name, text[-1][:400])
        for key, value in report.user_properties if report.when == "call" else ():
            if key == "rounding":
                replay.rounding[name] = value
    wrong = sum(map(bool, replay.done.values()))
    found = {
        "launches": [len(replay.done) - wrong, len(replay.done)],
        "instructions": {
            name: [replay.same[name], total] for name, total in sorted(replay.launches.items())
        },
        "different": replay.different,
        "refused": replay.refused,
        "rounding": replay.rounding,
    }
    session.config.getoption("--replay-json").write_text(json.dumps(found, indent=1) + "\n")
