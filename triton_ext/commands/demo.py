"""``triton-ext demo``: what ``make demo`` shows."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Show a Blackwell layout, its checks, and a matmul compiled from it (needs Triton, torch)."""
    try:
        from triton_ext.commands.demonstration import run_demo

        passed = run_demo()
    except ImportError as error:
        raise click.ClickException(f"{error}; pip install 'triton-ext[kernels]'") from None
    if not passed:
        raise click.ClickException("a check failed")
