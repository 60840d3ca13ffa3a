"""Scenes: the boxes, texts and arrows of a picture, and their rendering by one template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

MARGIN = 16
"""Around a picture, in CSS pixels."""
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Theme:
    """The colours of a picture under one colour scheme, as ``#rrggbb``.

    Attributes:
        fills: the colours of cells. They tell the 8 columns of 8x16B subtiles of an atom apart,
            in the order of seed 003 ("colored in grey, red, purple, and blue"), continued to 8.
    """

    ground: str
    panel: str
    ink: str
    faint: str
    rule: str
    atom: str
    other_atom: str
    subtile: str
    focus: str
    fills: tuple[str, ...]


_COLOURS = {  # light, dark
    "ground": ("#ffffff", "#14171c"),
    "panel": ("#f5f6f8", "#1d2128"),
    "ink": ("#1a1d21", "#eef1f5"),
    "faint": ("#5a626d", "#a7b0bc"),
    "rule": ("#cfd4db", "#3a414c"),
    "atom": ("#1f6fd0", "#7ab5ff"),
    "other_atom": ("#b8610a", "#f0a552"),
    "subtile": ("#cf222e", "#ff7386"),
    "focus": ("#0b0d10", "#ffffff"),
}
_FILLS = (
    ("#cdd2d9", "#f4a9a3", "#d0b8f2", "#a6c9f8", "#f9c88f", "#abdfb1", "#f0e28f", "#96dad5"),
    ("#565d68", "#953838", "#67489a", "#2d5c9b", "#8f5b1c", "#2c6f3d", "#736411", "#1e6f6c"),
)
LIGHT, DARK = (
    Theme(**{name: pair[i] for name, pair in _COLOURS.items()}, fills=_FILLS[i]) for i in range(2)
)
FILLS = len(LIGHT.fills)


@dataclass(frozen=True)
class Box:
    """A rectangle with a text in it and a tooltip.

    Attributes:
        x, y, width, height: the rectangle, in CSS pixels.
        kind: its classes in the style sheet, such as ``chunk fill3``.
        label: the text, in the middle of the box or in a corner, as `at` says.
        data: ``data-`` attributes that name what the box stands for.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""
    label: str = ""
    at: Literal["middle", "top", "bottom"] = "middle"
    data: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def label_x(self) -> float:
        return self.x + (self.width / 2 if self.at == "middle" else 5)

    @property
    def label_y(self) -> float:
        return self.y + {"middle": self.height / 2, "top": 11, "bottom": self.height - 9}[self.at]


@dataclass(frozen=True)
class Text:
    """A text beside the boxes. `anchor` is SVG's ``text-anchor``; `y` is its middle."""

    x: float
    y: float
    text: str
    kind: str = "axis"
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True)
class Arrow:
    """A straight arrow; `kind`: its classes in the style sheet, ``arrow`` (``unused``)."""

    x: float
    y: float
    to_x: float
    to_y: float
    kind: str = "arrow"

    @property
    def head(self) -> tuple[tuple[float, float], ...]:
        """The corners of its head: the tip, and one on each side of the line, 7 pixels back."""
        dx, dy = self.to_x - self.x, self.to_y - self.y
        length = (dx * dx + dy * dy) ** 0.5
        dx, dy = dx / length, dy / length
        back_x, back_y = self.to_x - 7 * dx, self.to_y - 7 * dy
        return (
            (self.to_x, self.to_y),
            (back_x - 4 * dy, back_y + 4 * dx),
            (back_x + 4 * dy, back_y - 4 * dx),
        )


@dataclass(frozen=True)
class Scene:
    """A picture before it is rendered; the unit is the CSS pixel.

    Attributes:
        title: what it shows, in a line: the accessible name of the picture.
        description: the same in more words, for those who cannot see it.
    """

    title: str
    description: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    texts: tuple[Text, ...]
    arrows: tuple[Arrow, ...] = ()

    def moved(self, dx: float, dy: float) -> Scene:
        """The same picture, further right and down."""
        return replace(
            self,
            width=self.width + dx,
            height=self.height + dy,
            boxes=tuple(replace(box, x=box.x + dx, y=box.y + dy) for box in self.boxes),
            texts=tuple(replace(text, x=text.x + dx, y=text.y + dy) for text in self.texts),
            arrows=tuple(
                replace(one, x=one.x + dx, y=one.y + dy, to_x=one.to_x + dx, to_y=one.to_y + dy)
                for one in self.arrows
            ),
        )

    def _with(self, other: Scene) -> Scene:
        return Scene(
            title=f"{self.title}; {other.title}",
            description=f"{self.description} {other.description}",
            width=max(self.width, other.width),
            height=max(self.height, other.height),
            boxes=self.boxes + other.boxes,
            texts=self.texts + other.texts,
            arrows=self.arrows + other.arrows,
        )

    def above(self, other: Scene) -> Scene:
        """Both pictures in one, `other` below."""
        return self._with(other.moved(0, self.height))

    def beside(self, other: Scene) -> Scene:
        """Both pictures in one, `other` on the right."""
        return self._with(other.moved(self.width, 0))

    def to_svg(self) -> str:
        """The picture as a whole SVG document, which follows the reader's colour scheme."""
        return rendered("scene.svg", scene=self)


@dataclass(frozen=True)
class Grid:
    """Cells of one size, in rows and columns from a corner of the picture.

    Attributes:
        clearance: between the cells and the middle of the labels above them.
    """

    left: float
    top: float
    width: float
    height: float
    clearance: float = 11

    def x(self, column: float) -> float:
        """The left edge of a column."""
        return self.left + column * self.width

    def y(self, row: float) -> float:
        """The upper edge of a row."""
        return self.top + row * self.height

    def area(
        self, row: float, column: float, rows: float = 1, columns: float = 1, inset: float = 0
    ) -> tuple[float, float, float, float]:
        """The x, y, width and height of some rows and columns, less `inset` on each side."""
        x, y = self.x(column) + inset, self.y(row) + inset
        return x, y, columns * self.width - 2 * inset, rows * self.height - 2 * inset

    def row_label(self, row: float, label: object) -> Text:
        """A text on the left of a row."""
        return Text(self.left - 8, self.y(row + 0.5), str(label), anchor="end")

    def column_label(self, column: float, label: object) -> Text:
        """A text above a column."""
        return Text(self.x(column + 0.5), self.top - self.clearance, str(label), anchor="middle")

    def row_labels(self, labels: Iterable[object]) -> list[Text]:
        """A text on the left of each of the first rows."""
        return [self.row_label(row, label) for row, label in enumerate(labels)]

    def column_labels(self, labels: Iterable[object]) -> list[Text]:
        """A text above each of the first columns."""
        return [self.column_label(column, label) for column, label in enumerate(labels)]


def heading(title: str, caption: str, left: float = MARGIN) -> tuple[Text, Text]:
    """The title of a figure, and under it what runs down and across."""
    return Text(MARGIN, MARGIN + 10, title, "heading"), Text(left, MARGIN + 32, caption)


def figure(
    title: str,
    boxes: Iterable[Box],
    texts: Iterable[Text],
    notes: Sequence[str],
    size: tuple[float, float],
    *,
    arrows: Iterable[Arrow] = (),
    description: str = "",
    captions: Sequence[str] = (),
) -> Scene:
    """A drawing with notes below it.

    Args:
        title: one line that describes it, among `texts` as well.
        boxes, texts, arrows: the drawing.
        notes: the lines below it.
        size: the right and the lower end of the drawing.
        description: in more words; the notes, unless it is given.
        captions: lines that must fit into the width, besides the title and the notes.
    """
    right, bottom = size
    drawn = []
    for y, note in enumerate(notes):
        drawn.append(Text(MARGIN, bottom + 20 + 17 * y, note, "note"))
    return Scene(
        title,
        description or " ".join(notes),
        max(right, MARGIN + caption_width(title, [*captions, *notes])) + MARGIN,
        bottom + 12 + 17 * len(notes) + MARGIN,
        tuple(boxes),
        (*texts, *drawn),
        tuple(arrows),
    )


def caption_width(title: str, notes: Iterable[str]) -> float:
    """How wide a heading and the notes below it are at most, from the left margin on."""
    return max([9 * len(title), *(6.5 * len(note) for note in notes)])


def fitting(label: str, width: float) -> str:
    """A label, or "" where a box of this width has no room for it."""
    return label if len(label) * 6.2 < width else ""


def rendered(template: str, **values: Any) -> str:
    """What a template of this package makes of some values, which are escaped."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """The templates of this package, which know the two themes as ``light`` and ``dark``."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals.update(light=LIGHT, dark=DARK)
    return found
