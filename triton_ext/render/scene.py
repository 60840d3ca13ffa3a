"""Scenes: the boxes, texts and arrows of a picture, and their rendering by one template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

MARGIN = 16
"""Around a picture, in CSS pixels."""
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Theme:
    """The colours of a picture under one colour scheme, as ``#rrggbb``.

    Attributes:
        fills: what tells the 8 columns of 8x16B subtiles of an atom apart, in the order of seed
            003 ("colored in grey, red, purple, and blue"), continued to 8.
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


LIGHT = Theme(
    ground="#ffffff",
    panel="#f5f6f8",
    ink="#1a1d21",
    faint="#5a626d",
    rule="#cfd4db",
    atom="#1f6fd0",
    other_atom="#b8610a",
    subtile="#cf222e",
    focus="#0b0d10",
    fills=("#cdd2d9", "#f4a9a3", "#d0b8f2", "#a6c9f8", "#f9c88f", "#abdfb1", "#f0e28f", "#96dad5"),
)
DARK = Theme(
    ground="#14171c",
    panel="#1d2128",
    ink="#eef1f5",
    faint="#a7b0bc",
    rule="#3a414c",
    atom="#7ab5ff",
    other_atom="#f0a552",
    subtile="#ff7386",
    focus="#ffffff",
    fills=("#565d68", "#953838", "#67489a", "#2d5c9b", "#8f5b1c", "#2c6f3d", "#736411", "#1e6f6c"),
)
FILLS = len(LIGHT.fills)


@dataclass(frozen=True)
class Box:
    """A rectangle with a text in it and a tooltip.

    Attributes:
        kind: its classes in the style sheet, such as ``chunk fill3``.
        title: the tooltip.
        label: the text, at the place that `at` says: in the middle, or in a corner.
        data: ``data-`` attributes: what the box stands for.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""
    label: str = ""
    at: Literal["middle", "top", "bottom"] = "middle"
    data: tuple[tuple[str, str | int], ...] = ()

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
        """The corners of its head: the tip, and two beside the line, 7 behind the tip."""
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
        return environment().get_template("scene.svg").render(scene=self, light=LIGHT, dark=DARK)


def caption_width(title: str, notes: Iterable[str]) -> float:
    """How wide a heading and the notes below it are at most, from the left margin on."""
    return max([9 * len(title), *(6.5 * len(note) for note in notes)])


def in_bytes(count: int) -> str:
    """``1 byte``, ``2 bytes``."""
    return f"{count} byte" + ("s" if count != 1 else "")


def by(shape: Iterable[int]) -> str:
    """``128x64``."""
    return "x".join(map(str, shape))


def lines_of_text(
    x: float, y: float, lines: Iterable[str], kind: str = "note"
) -> tuple[tuple[Text, ...], float]:
    """Texts below each other, and the y below the last."""
    texts = []
    for line in lines:
        texts.append(Text(x, y + 8, line, kind))
        y += 17
    return tuple(texts), y


@cache
def environment() -> Environment:
    """The templates of this package; what they are given is escaped."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
