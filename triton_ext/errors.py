"""The errors that `triton_ext` raises on bad input, and for faults that it finds in a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_ext.findings import Finding


class LayoutError(ValueError):
    """An argument breaks a rule of layouts, encodings or operand shapes.

    Attributes:
        argument: the name of the offending argument or field.
        value: what was given.
        rule: the rule that it breaks, and what would be legal.
    """

    def __init__(self, argument: str, value: Any, rule: str) -> None:
        super().__init__(argument, value, rule)
        self.argument = argument
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        try:
            shown = repr(self.value)
        except ValueError:  # Python prints no integer of thousands of digits
            shown = f"(a {type(self.value).__name__} too long to print)"
        if len(shown) > 200:
            shown = shown[:197] + "..."
        return f"{self.argument} = {shown}: {self.rule}"


class UnsupportedDeviceError(RuntimeError):
    """No kernel of this project runs on the device at hand."""


class PeerError(RuntimeError):
    """Another rank of a group did not take part in a product."""


class Fault(Exception):
    """A fault that was found in a program, as opposed to one of this project or of its use."""

    def findings(self) -> list[Finding]:
        """What was found, with its lines."""
        raise NotImplementedError


class PassError(Fault):
    """A compiler pass found an error in a kernel, or could not run.

    Attributes:
        diagnostics: what was found (`triton_ext.passes.Diagnostic`), the errors and the warnings;
            empty if the pass could not run.
        compiler_pass: the name of the pass; "" if it is not known.
    """

    def __init__(
        self, message: str, diagnostics: Sequence[Any] = (), compiler_pass: str = ""
    ) -> None:
        super().__init__(message)
        self.diagnostics = tuple(diagnostics)
        self.compiler_pass = compiler_pass

    def findings(self) -> list[Finding]:
        rule = self.compiler_pass or type(self).__name__
        found = [each.finding(rule) for each in self.diagnostics]
        return found or [Finding(rule, "A compiler pass that could not run.", "error", str(self))]
