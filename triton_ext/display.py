"""Values that notebooks draw.

How a value is drawn, layers above the value's own say (`triton_ext.render`): ``triton_ext`` itself
hands the function in, so that a layout can be shown by code that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable

_draw: Callable[[object], str | None] | None = None


def draw_with(draw: Callable[[object], str | None]) -> None:
    """Let a function draw `Displayed` values: value -> HTML, or None where it draws nothing."""
    global _draw
    _draw = draw


class Displayed:
    """A value that notebooks show as a picture; those that cannot show its text."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """The picture, as IPython's display protocol asks for it; None for the text alone."""
        return None if _draw is None else _draw(self)
