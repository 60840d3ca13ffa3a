"""Runs check-conversion on TTGIR, with whatever Triton can be imported.

Reads a JSON list of modules from stdin. Writes JSON lines: Triton's version, then for each module
its report and its diagnostics.
"""

from __future__ import annotations

import json
import sys

from triton_ext.passes import Compilation
from triton_ext.passes.check_conversion import ask_triton, check_conversion


def main():
    print(json.dumps(ask_triton().version))
    for text in json.load(sys.stdin):
        outcome = check_conversion(Compilation("kernel", 90, "ttgir", {"ttgir": text}))
        shown = [[each.severity, str(each)] for each in outcome.diagnostics]
        print(json.dumps({"report": outcome.report, "diagnostics": shown}))


if __name__ == "__main__":
    main()
