"""Rewards of websites that a model writes whole: their structure, whether they build, what they show, how they look.

A completion holds the files of a project, each behind a comment with its name: `<!-- index.html --><body>…`. The row's
metadata have `pages`, the scaffold: `{"index.html": {"texts": ["bread"], "links": ["about.html"]}}`, each page with
what it must show and where it must lead. Pages are read and never run; `composite.gated` makes a cascade of these
rewards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from learning.data.rows import Row, read_metadata
from schemas.base import Schema
from schemas.errors import StepError

LONGEST = 20_000
"""Most characters of a project; a longer one has no structure."""
SIDE = 16
"""Lines of a drawn page, and cells of a line."""
CHARACTERS = 2
"""Characters of text in a cell; a cell is an em wide."""
READABLE = 7.0
"""Ratio of contrast from which text counts as fully readable (WCAG 2, level AAA)."""
BLOCKS = {"body", "h1", "h2", "h3", "p", "a", "li", "ul", "ol", "div", "header", "main", "nav", "section", "footer"}
TAGS = BLOCKS | {"span", "b", "i", "em", "strong", "br", "hr"}
VOID = {"br", "hr"}
NAMES = {"black": "#000", "white": "#fff", "gray": "#808080", "grey": "#808080"}
FILE = re.compile(r"<!--\s*([\w./-]{1,100})\s*-->")
COLOUR = re.compile(r"#(?:[0-9a-f]{3}|[0-9a-f]{6})")
INDENT = re.compile(r"(\d{1,4})(em|px)")


class Brief(Schema):
    """What a page must have."""

    texts: list[str] = []
    """Words that it shows."""
    links: list[str] = []
    """Pages that it leads to."""


@dataclass(frozen=True)
class Style:
    """How text is drawn: inherited, and changed by `style` of a tag."""

    left: int = 0
    """Cells before the text."""
    centred: bool = False
    ink: float = 0.0
    """Luminance of the text, from 0 (black) to 1."""
    ground: float = 1.0
    """Luminance behind it."""


@dataclass
class Page:
    """A page as it was read."""

    lines: list[tuple[str, Style]] = field(default_factory=list)
    """Texts of blocks, from top to bottom."""
    links: list[str] = field(default_factory=list)
    bodies: int = 0
    unknown: bool = False
    """Whether it has tags that the scaffold does not allow, such as scripts."""
    broken: bool = False
    """Whether a tag is not closed, or closed where it is not open."""


Project = dict[str, Page] | None
"""Pages by name; None if a text is no project."""


def structured(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if a project has the files of its row's scaffold and no others, each one body of known tags, else 0."""
    return [_score(row, text, _is_structured) for row, text in zip(rows, completions, strict=True)]


def builds(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if all tags of a project are closed in order and all of its links lead to its pages, else 0."""
    return [_score(row, text, _builds) for row, text in zip(rows, completions, strict=True)]


def shows(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Share of the texts and links that a row asks for which the pages have, each on its own page."""
    return [_score(row, text, _measure_content) for row, text in zip(rows, completions, strict=True)]


def looks(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Mean of contrast and alignment of the drawn pages, from 0 to 1.

    A page is drawn to 16 lines of 16 cells. Contrast is the mean over cells with text of (ratio − 1)/6, at most 1, with
    the ratio of WCAG 2; alignment is the share of lines that begin where most lines do.
    """
    return [_score(row, text, _measure_looks) for row, text in zip(rows, completions, strict=True)]


def _score(row: Row, text: str, measure) -> float | None:
    briefs = read_briefs(row)
    return None if briefs is None else float(measure(briefs, read_project(text)))


def read_briefs(row: Row) -> dict[str, Brief] | None:
    """Return what a row asks of each page; None without any. Raise StepError for `pages` of another form."""
    pages = read_metadata(row).get("pages")
    if not pages:
        return None
    try:
        return {name: Brief.model_validate(brief) for name, brief in pages.items()}
    except (AttributeError, ValidationError) as error:
        raise StepError(
            f"rewards websites: row {row.get('id')}: its `pages` must be a map such as "
            '{"index.html": {"texts": ["bread"], "links": ["about.html"]}}'
        ) from error


def read_project(text: str) -> Project:
    """Return the pages of a project by name; None if it is no list of files, or names one twice, or is too long."""
    before, *parts = FILE.split(text) if len(text) <= LONGEST else [text]
    names = parts[::2]
    if before.strip() or len(set(names)) < len(names):
        return None
    return {name: read_page(part) for name, part in zip(names, parts[1::2], strict=True)}


def read_page(text: str) -> Page:
    """Return what a page has."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.page.broken |= bool(reader.above)
    return reader.page


class _Reader(HTMLParser):
    """Reads one page; `above` are the open tags, with the style of the text in them."""

    def __init__(self) -> None:
        super().__init__()
        self.page, self.above, self.begins = Page(), list[tuple[str, Style]](), True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        style = read_style(given.get("style") or "", self.above[-1][1] if self.above else Style())
        self.page.bodies += tag == "body"
        self.page.unknown |= tag not in TAGS
        self.begins |= tag in BLOCKS or tag in VOID
        if tag == "a":
            self.page.links.append(given.get("href") or "")
        if tag not in VOID:
            self.above.append((tag, style))

    def handle_endtag(self, tag: str) -> None:
        if self.above and self.above[-1][0] == tag:
            self.above.pop()
        else:
            self.page.broken = True
        self.begins |= tag in BLOCKS

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if not text:
            return
        lines = self.page.lines
        if self.begins or not lines:
            lines.append((text, self.above[-1][1] if self.above else Style()))
        else:
            lines[-1] = (f"{lines[-1][0]} {text}", lines[-1][1])
        self.begins = False


def read_style(text: str, above: Style) -> Style:
    """Return a style with the declarations of a `style` attribute; what is not understood changes nothing."""
    style = above
    for part in text.lower().split(";"):
        name, _, value = (one.strip() for one in part.partition(":"))
        if name in ("color", "background", "background-color"):
            colour = NAMES.get(value, value)
            if COLOUR.fullmatch(colour):
                shade = measure_luminance(colour)
                style = replace(style, ink=shade) if name == "color" else replace(style, ground=shade)
        elif name == "margin-left" and (match := INDENT.fullmatch(value)):
            style = replace(style, left=above.left + int(match[1]) // (16 if match[2] == "px" else 1))
        elif name == "text-align" and value in ("left", "center"):
            style = replace(style, centred=value == "center")
    return style


def measure_luminance(colour: str) -> float:
    """Return the relative luminance of `#rgb` or `#rrggbb` (WCAG 2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def draw_page(page: Page) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the luminance of text and of ground in every cell (16, 16); NaN where there is no text."""
    ink = np.full((SIDE, SIDE), np.nan)
    ground = np.ones((SIDE, SIDE))
    for line, (text, style) in enumerate(page.lines[:SIDE]):
        width = min(-(-len(text) // CHARACTERS), SIDE)
        left = (SIDE - width) // 2 if style.centred else min(style.left, SIDE - 1)
        ground[line] = style.ground
        ink[line, left : left + width] = style.ink
    return ink, ground


def _is_structured(briefs: Mapping[str, Brief], project: Project) -> bool:
    if project is None or project.keys() != briefs.keys():
        return False
    return all(page.bodies == 1 and not page.unknown for page in project.values())


def _builds(briefs: Mapping[str, Brief], project: Project) -> bool:
    if not project:
        return False
    return all(not page.broken and project.keys() >= set(page.links) for page in project.values())


def _measure_content(briefs: Mapping[str, Brief], project: Project) -> float:
    shown = []
    for name, brief in briefs.items():
        page = (project or {}).get(name, Page())
        words = " ".join(text for text, _ in page.lines)
        shown += [re.search(rf"(?<!\w){re.escape(text)}(?!\w)", words) is not None for text in brief.texts]
        shown += [link in page.links for link in brief.links]
    return sum(shown) / len(shown) if shown else 1.0


def _measure_looks(briefs: Mapping[str, Brief], project: Project) -> float:
    return float(np.mean([_measure_page(page) for page in project.values()])) if project else 0.0


def _measure_page(page: Page) -> float:
    ink, ground = draw_page(page)
    drawn = ~np.isnan(ink)
    if not drawn.any():
        return 0.0
    light, dark = np.maximum(ink, ground)[drawn], np.minimum(ink, ground)[drawn]
    ratio = (light + 0.05) / (dark + 0.05)
    contrast = float(np.minimum((ratio - 1) / (READABLE - 1), 1.0).mean())
    edges = drawn.argmax(axis=1)[drawn.any(axis=1)]
    return (contrast + float(np.bincount(edges).max() / len(edges))) / 2
