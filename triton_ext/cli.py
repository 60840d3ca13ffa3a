"""The command ``triton-ext``."""

from __future__ import annotations

import click

from triton_ext.commands.common import CommandGroup


@click.group(
    cls=CommandGroup,
    modules={
        name: f"triton_ext.commands.{name.replace('-', '_')}"
        for name in (
            "banks",
            "compile",
            "demo",
            "descriptor",
            "diff",
            "explore",
            "layout",
            "precompile",
            "ptx",
            "run",
            "tma",
            "tmem",
            "tune",
        )
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(package_name="triton-layouts", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Shared-memory layouts of the Hopper and Blackwell tensor cores.

    See what a layout is, and check it against the documents and against Triton.

    \b
    Shell completion (bash; zsh and fish likewise):
      eval "$(_TRITON_EXT_COMPLETE=bash_source triton-ext)"

    Exit status: 0; 1 if a fault was found (by a check or a pass, in a kernel on the emulated GPU,
    in a script); 2 if the command cannot be carried out as it was given.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


if __name__ == "__main__":
    main()
