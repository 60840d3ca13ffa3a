"""PTX as text: what of it is code."""

from __future__ import annotations

import re

_DEBUG = re.compile(
    r"""^\s*(?:
        \.loc\b | \.file\b                      # line numbers
      | \$L__(?:tmp|func_begin|func_end|info)   # labels that only the debug sections refer to
      | //                                      # comments
    )""",
    re.VERBOSE,
)


def without_debug_lines(ptx: str) -> str:
    """The instructions and directives of a PTX module, without line numbers and debug sections.

    Two compilations of the same kernel differ in the latter alone.
    """
    code, _, _ = ptx.partition("\n\t.section\t.debug")
    lines = (re.sub(r"//.*", "", line).rstrip() for line in code.splitlines())
    return "\n".join(line for line in lines if line.strip() and not _DEBUG.match(line))
