"""The settings of the site that ``make docs`` builds (Sphinx)."""

from __future__ import annotations

from triton_ext._version import __version__

project = "triton_ext"
author = "the authors of triton_ext"
release = version = __version__

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
