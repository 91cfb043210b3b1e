"""docs/fidelity/ID.yaml: each constant and formula of a paper's recipe with its source; a page of all of them.

`python -m schemas.pages.fidelity` prints the page.
"""

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.package import ROOT

FOLDER = ROOT / "docs" / "fidelity"
INTRODUCTION = """# Fidelity

<!-- Written by `make docs` from the files ID.yaml in this folder. Edit those. -->

Each constant and formula of a paper's recipe, with the line of the released code or the statement of the paper that it
follows. *same*: as in the source. *deviates*: known to differ. *ours*: the source leaves it open. *unsure*: it was not
found; the section says where it was looked for. Lines of code are those of the commit that the section names.
"""


class Claim(Schema):
    """One constant or formula."""

    what: str = Field(min_length=1)
    here: str = Field(min_length=1)
    """How the recipe, or the function that it names, does it."""
    source: str = ""
    """File and line of the released code, or equation, section or table of the paper."""
    status: Literal["same", "deviates", "ours", "unsure"]
    note: str = ""

    @model_validator(mode="after")
    def check_source(self) -> Self:
        """Refuse a comparison without a source, and a deviation or doubt without an explanation."""
        if self.status in ("same", "deviates") and not self.source:
            raise ValueError(f"`{self.what}` is {self.status}: as what? name the source")
        if self.status in ("deviates", "unsure") and not self.note:
            raise ValueError(f"`{self.what}` is {self.status}: say how, in `note`")
        return self


class Fidelity(Schema):
    """What a recipe takes from a paper, and from where."""

    code: str
    """Repository of the released code with its commit, or that none was found."""
    looked: str
    """What was read, and where else it was looked for."""
    claims: tuple[Claim, ...] = Field(min_length=1)


def read_fidelity(file: Path) -> Fidelity:
    """Return the content of a file. Raise pydantic's ValidationError."""
    return Fidelity.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def make_fidelity_page(folder: Path) -> str:
    """Return the page as Markdown: a section with a table for each paper."""
    lines = [INTRODUCTION]
    for file in sorted(folder.glob("*.yaml")):
        one = read_fidelity(file)
        lines += [f"## {file.stem}", "", f"Code: {one.code}. Read: {one.looked}.", ""]
        lines += ["| what | here | source | | |", "|---|---|---|---|---|"]
        lines += [
            f"| {' | '.join(escape(cell) for cell in (c.what, c.here, c.source, c.status, c.note))} |"
            for c in one.claims
        ]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """Return a text that fits into a cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(make_fidelity_page(FOLDER), end="")
