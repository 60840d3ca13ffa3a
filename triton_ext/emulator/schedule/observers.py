"""Observers of a running kernel: what the engine tells its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.state.block import AccessObserver, AsyncOperation, Cta, Launch, Options
from triton_ext.emulator.state.lanes import Lanes


class Run(Protocol):
    """A launch that is about to run, and what an observer may ask of it then.

    Attributes:
        program: the kernel.
        launch, options, counts: see `triton_ext.emulator.state.block.Gpu`.
    """

    program: Program
    launch: Launch
    options: Options
    counts: list[int]

    def without_values(self) -> None:
        """Leave out what only computes values of products: outputs are garbage then."""


class Observer(AccessObserver):
    """Told by the machine of what happens. This one does nothing: to be derived from."""

    def begins(self, run: Run) -> Observer:
        """A launch is about to run; returns who is told of it."""
        return self

    def ends(self, run: Run) -> None:
        """A launch has run to its end."""

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        """`lanes` of a block are about to execute `step`."""

    def waits(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        """`lanes` cannot go on yet."""

    def issues(self, operation: AsyncOperation) -> None:
        """Lanes have issued an asynchronous operation."""

    def performs(self, operation: AsyncOperation) -> None:
        """An asynchronous operation is about to be done."""

    def completed(self, operation: AsyncOperation) -> None:
        """An asynchronous operation was done."""


_TOLD = [
    name
    for each in (Observer, AccessObserver)
    for name in vars(each)
    if not name.startswith("_") and name != "begins"
]


class Observers(Observer):
    """Several at once: each is told of everything, in their order."""

    def __init__(self, parts: Sequence[Observer]) -> None:
        self.parts = tuple(parts)
        for name in _TOLD:
            setattr(self, name, _each([getattr(part, name) for part in self.parts]))

    def begins(self, run: Run) -> Observer:
        return Observers([part.begins(run) for part in self.parts])


def _each(functions: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        for function in functions:
            function(*args)

    return call


SILENT = Observer()
"""For a launch of which nobody is told."""


def combined(observers: Sequence[Observer | None]) -> Observer:
    """One that stands for all of them."""
    told = [each for each in observers if each not in (None, SILENT)]
    return Observers(told) if len(told) > 1 else next(iter(told), SILENT)
