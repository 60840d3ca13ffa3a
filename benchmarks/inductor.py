"""``torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")`` as a side of `benchmarks.matmul`.

It runs in a process of its own, with the Triton that PyTorch was installed with: PyTorch pins one
release, and its code generator may not know another that comes first on ``PYTHONPATH``. The process
replays its graph when it is told to, in turn with the other sides, which wait for it, so that the
measurement is interleaved all the same. Each process times its own graph by its own events.

Messages are JSON, one a line, on the process's stdin and stdout: a method's name with its
arguments, and what it returned or the error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.problems import Operands, Problem, inputs
from benchmarks.replay import graph_of, replayed_seconds


class InductorError(RuntimeError):
    """What the process said when it could not do what it was told to."""


class Inductor:
    """The process, as its parent sees it. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.inductor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": without_triton(os.environ.get("PYTHONPATH", ""))},
        )

    def __enter__(self) -> Inductor:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def send(self, method: str, **arguments: Any) -> None:
        """Ask for something, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """What the oldest question without an answer was answered.

        Raises:
            InductorError: it failed, or the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InductorError("the process has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise InductorError(answer["error"])
        return answer["result"]

    def ask(self, method: str, **arguments: Any) -> Any:
        """`send`, then `receive`."""
        self.send(method, **arguments)
        return self.receive()


def without_triton(path: str) -> str:
    """A ``PYTHONPATH`` less the folders that hold a Triton."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    return os.pathsep.join(f for f in folders if not (Path(f) / "triton" / "__init__.py").exists())


class Worker:
    """What the process does."""

    def __init__(self) -> None:
        from torch._inductor import config  # seconds, which who asks the process need not wait

        # One function is compiled for every problem.
        torch._dynamo.config.recompile_limit = 1000
        config.autotune_num_choices_displayed = 0
        self._product = torch.compile(
            lambda a, b: torch.mm(a, b), mode="max-autotune-no-cudagraphs", dynamic=False
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._count = 1
        self._kept: list[Any] = []
        self._fastest = ""
        self._watch_choices()

    def _watch_choices(self) -> None:
        """Remember the name of what Inductor finds the fastest."""
        from torch._inductor.select_algorithm import add_feedback_saver

        def remember(timings: dict[Any, float], *_: Any) -> None:
            if timings:
                best = min(timings, key=lambda choice: timings[choice])
                details = best.info_dict() if hasattr(best, "info_dict") else {}
                words = [str(best.name).rpartition("::")[2]]
                words += [
                    f"{name} {details[name]}"
                    for name in ("tile_shape", "num_stages", "num_warps")
                    if name in details
                ]
                self._fastest = ", ".join(words)

        add_feedback_saver(remember)

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("torch", "triton")}

    def tune(self, **problem: Any) -> dict[str, Any]:
        """Compile for a problem; what was chosen, how long it took, and the product's error."""
        a, b, _ = inputs(Problem(**problem))
        self._fastest = ""
        start = time.perf_counter()
        c = self._product(a, b)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        expected = a[:64].double() @ b.double()
        error = float((c[:64].double() - expected).norm() / expected.norm())
        return {"choice": self._fastest, "seconds": seconds, "error": error}

    def prepare(self, sets: int, count: int, **problem: Any) -> None:
        """Make operands, and the graph of `count` launches over them."""
        operands: list[Operands] = [inputs(Problem(**problem)) for _ in range(sets)]
        # The products are kept, so that they are written to as much memory as the other sides'.
        products: list[Any] = [None] * sets

        def launch(i: int) -> None:
            a, b, _ = operands[i % sets]
            products[i % sets] = self._product(a, b)

        self._kept = [operands, products]
        self._graph, self._count = graph_of(launch, count), count

    def replay(self) -> float:
        """Seconds of one launch."""
        assert self._graph is not None
        return replayed_seconds({"inductor": self._graph})["inductor"][0] / self._count

    def release(self) -> None:
        """Give back the memory of the last problem."""
        self._graph = None
        self._kept = []
        torch.cuda.empty_cache()


def arguments_of(problem: Problem) -> dict[str, Any]:
    """A problem, as the process is told of it."""
    return asdict(problem)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Inductor prints
    worker = Worker()
    methods: dict[str, Callable[..., Any]] = {
        name: getattr(worker, name) for name in ("versions", "tune", "prepare", "replay", "release")
    }
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"result": methods[method](**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
