"""Triton's own conversion to linear layouts, asked in a child process.

Triton aborts the process on an illegal shape, and one process holds one version of Triton. So the
question goes to a child: it imports Triton once, and forks a worker that converts case after case.
Where the worker dies, the case is answered with the reason, and another worker takes up the rest.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from triton_ext.layouts.encodings import SharedEncoding, parse_encoding
from triton_ext.layouts.triton.converted import Converted


@dataclass(frozen=True)
class TritonOracle:
    """A Triton to ask: the importable one, or the one in the folder `site`."""

    site: Path | None = None

    def _run(self, request: dict[str, Any]) -> list[Any]:
        paths = [str(self.site)] if self.site else []
        paths.append(str(Path(__file__).resolve().parents[3]))
        paths.append(os.environ.get("PYTHONPATH", ""))
        finished = subprocess.run(
            [sys.executable, "-m", "triton_ext.layouts.triton.oracle"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        if finished.returncode:
            raise RuntimeError(f"the Triton oracle failed:\n{finished.stderr[-2000:]}")
        return [json.loads(line) for line in finished.stdout.splitlines()]

    @property
    def version(self) -> str:
        """The version of Triton that is asked, such as ``3.9.0``."""
        return str(self._run({"cases": []})[0])

    def convert(
        self, cases: Iterable[tuple[Sequence[int], SharedEncoding]]
    ) -> list[Converted | str]:
        """Triton's linear layout for each case, a shape and an encoding, or why it gives none: the
        exception, or "aborted: ..." with what the dying process printed. Raises RuntimeError:
        Triton cannot be imported there."""
        texts = [[list(shape), str(encoding)] for shape, encoding in cases]
        return [
            answer
            if isinstance(answer, str)
            else Converted(tuple(map(tuple, answer[0])), tuple(map(tuple, answer[1])), answer[2])
            for answer in self._run({"cases": texts})[1:]
        ]


_parsed = functools.cache(parse_encoding)


def _answer(builder: Any, shape: list[int], text: str) -> Any:
    from triton_ext.layouts.triton.gluon import linear_layout

    try:
        return astuple(linear_layout(builder, _parsed(text), shape))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _serve() -> None:
    import triton

    from triton_ext.layouts.triton.gluon import mlir_context, op_builder

    cases = json.load(sys.stdin)["cases"]
    print(json.dumps(triton.__version__), flush=True)
    context = mlir_context()
    done = 0
    while done < len(cases):
        reader, writer = os.pipe()
        with tempfile.TemporaryFile() as stderr:
            worker = os.fork()
            if not worker:
                os.dup2(stderr.fileno(), 2)
                builder = op_builder(context)
                with os.fdopen(writer, "w", buffering=1) as out:
                    for shape, text in cases[done:]:
                        out.write(json.dumps(_answer(builder, shape, text)) + "\n")
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as answers:
                for line in answers:
                    print(line, end="")
                    done += 1
            if os.waitpid(worker, 0)[1]:
                stderr.seek(0)
                said = stderr.read().decode(errors="replace").strip().splitlines()
                print(json.dumps("aborted: " + (said[-1] if said else "no message")))
                done += 1


if __name__ == "__main__":
    _serve()
