"""The settings of the site that ``make docs`` builds (Sphinx)."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import triton_ext
import triton_ext.emulator
import triton_ext.passes

project = "triton_ext"
author = "the authors of triton_ext"
release = version = triton_ext.__version__

# Names that a module imports when they are first asked for: autodoc looks where they are kept then.
for _module in (triton_ext, triton_ext.emulator, triton_ext.passes):
    for _name in _module.__all__:
        vars(_module).setdefault(_name, getattr(_module, _name))

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["upstream/*", "Thumbs.db"]

myst_heading_anchors = 4
myst_links_external_new_tab = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"
napoleon_use_ivar = True  # attributes are documented where they are annotated

html_theme = "furo"
html_title = f"triton_ext {release}"
html_show_sphinx = False
copybutton_prompt_text = r"^\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

_OUTWARDS = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def _link_the_checkout(app: Sphinx, page: str, source: list[str]) -> None:
    """Make downloads of links that lead out of ``docs``, and mere text of those to folders."""
    here = (Path(app.srcdir) / page).parent

    def link(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if target.is_dir():
            return match[1]
        inside = target.is_relative_to(app.srcdir)
        return match[0] if inside else f"[{match[1]}](path:{match[2]})"

    source[0] = _OUTWARDS.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("source-read", _link_the_checkout)
