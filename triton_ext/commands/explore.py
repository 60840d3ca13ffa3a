"""``triton-ext explore``: one page that shows, and lets one change, all that the project draws."""

from __future__ import annotations

from pathlib import Path

import click

from triton_ext.commands.common import rendering


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, writable=True))
def explore(file: str | None) -> None:
    """Write the page to explore: layouts, banks, descriptors, registers, TMA, tensor memory.

    One HTML file that needs no server and no network: open it in a browser, type in a shape and a
    type, point at an element. What is shown stands in the address, to be sent to somebody who has
    the file. Without FILE, the page goes to stdout.

    \b
    Examples:
      triton-ext explore explore.html
      triton-ext explore > explore.html
    """
    page = rendering("html.explore_html")()
    if file is None:
        click.echo(page)
    else:
        try:
            Path(file).write_text(page, encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise click.BadParameter(f"{file}: {reason}", param_hint="FILE") from None
        click.echo(f"wrote {file}: open it in a browser", err=True)
