"""The console blocks of Markdown pages, and what their commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys


def console_blocks(page):
    """(command, output) of every block of a page that shows a command and what it prints."""
    return re.findall(r"```\n\$ (triton-ext[^\n]*)\n(.*?)```", page, re.DOTALL)


def assert_prints(command, output):
    """The installed command, in a process of its own."""
    arguments = [sys.executable, "-m", "triton_ext", *shlex.split(command)[1:]]
    finished = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert finished.stdout == output


def assert_shows(shown, printed):
    """`...` stands for anything."""
    parts = [re.escape(part) for part in shown.strip().split("...")]
    assert re.fullmatch(r"[\s\S]*?".join(parts), printed.strip()), printed
