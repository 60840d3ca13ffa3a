"""What all benchmarks share: the option --json, the table that is printed, and the file of rows."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gzip
import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.spec import KernelSpec, read_spec

Row = dict[str, Any]
"""What one line of a benchmark measured, as it is written to the file."""


class Table:
    """The columns of a benchmark's table.

    Args:
        columns: title, format specification (the title has its alignment and width), and what is
            shown of a row: a key, or a function of the row. None is shown as "-".
    """

    def __init__(self, *columns: tuple[str, str, str | Callable[[Row], Any]]) -> None:
        self._columns = columns

    @property
    def header(self) -> str:
        """The titles."""
        return "".join(_aligned(title, spec) for title, spec, _ in self._columns)

    def line(self, row: Row) -> str:
        """A row as it is printed."""
        cells = []
        for _, spec, shown in self._columns:
            value = shown(row) if callable(shown) else row.get(shown)
            cells.append(_aligned("-", spec) if value is None else format(value, spec))
        return "".join(cells)


def _aligned(text: str, spec: str) -> str:
    """A text in the alignment and width of a format specification."""
    match = re.match(r"[<>]?\d*", spec)
    return format(text, match[0] if match else "")


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser of a benchmark's arguments, with --json."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--json", type=Path, help="write the rows here; {gpu} stands for the GPU's name: h100"
    )
    return parser


def main(
    benchmark: str,
    description: str | None,
    rows: Callable[..., Iterable[Row]],
    table: Table,
    note: str = "",
    **defaults: int | float | str,
) -> list[Row]:
    """A benchmark as a command: `report`, with --json and an option for each argument of `rows`.

    Args:
        rows: measures, and makes the rows.
        defaults: the arguments and their defaults; False makes a flag.
    """
    parser = options(description)
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    given = vars(parser.parse_args())
    path = given.pop("json")
    return report(benchmark, rows(**given), table, path, note)


def report(
    benchmark: str,
    rows: Iterable[Row],
    table: Table,
    path: Path | None,
    note: str = "",
) -> list[Row]:
    """Print the machine, a note, and a benchmark's rows, and write them, as they come: what was
    measured before a time limit is of use.

    Args:
        benchmark: the module's name.
        path: the JSON file; none is written if it is None.
    """
    machine = " ".join(f"{name} {value}" for name, value in environment().items())
    for text in filter(None, (machine, note, table.header)):
        print(text)
    found = []
    for row in rows:
        found.append(row)
        print(table.line(row), flush=True)
        if path is not None:
            write(path, benchmark, found)
    return found


def environment() -> dict[str, str]:
    """The machine, the Python and the packages that a number depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "not installed"
    try:
        import torch

        if torch.cuda.is_available():
            found["cuda"] = str(torch.version.cuda)
            found["gpu"] = torch.cuda.get_device_name()
            found["driver"] = subprocess.run(
                ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
            ).stdout.split()[0]
    except ImportError:
        pass
    return found


def read(path: Path) -> dict[str, Any]:
    """What `write` has written; maybe of gzip."""
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def write(path: Path, benchmark: str, rows: list[Row]) -> None:
    """Write a benchmark's rows as JSON, a row a line, with the machine and the versions."""
    found = environment()
    gpu = found.get("gpu", "").lower().replace("nvidia", "").split()
    path = Path(str(path).replace("{gpu}", gpu[0] if gpu else "no_gpu"))
    document = {
        "benchmark": benchmark,
        "command": f"python -m benchmarks.{benchmark}",
        "date": datetime.date.today().isoformat(),
        "environment": found,
        "rows": [],
    }
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    text = json.dumps(document, indent=2).replace('"rows": []', f'"rows": [\n{lines}\n  ]')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def kernels_of(rows: Iterable[Row]) -> Iterator[tuple[KernelSpec, Row]]:
    """The kernel of each row's "config", and the row; not of those that there are no more."""
    for row in rows:
        with contextlib.suppress(LayoutError):
            yield read_spec(row["config"]), row
