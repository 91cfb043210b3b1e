"""Forms on a screen of text: pages of fields with a choice each, and a button to the next page or to save.

    Big Cat            what is to be chosen (first message only)
    pet=               a field: its label and its value
    fit=Big
    [save]             a button

`Cat` clicks on that choice of the field that offers it, `save` on the button. Pages cannot be turned back. A form is
filled in when it is saved with every choice that was asked for; fields that nobody asked for may hold anything.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

CHOICES = {
    "hue": ("Red", "Tan", "Jet"),
    "fit": ("Big", "Mid", "Wee"),
    "eat": ("Egg", "Ham", "Pie"),
    "pet": ("Cat", "Dog", "Yak"),
    "kit": ("Fan", "Key", "Oar"),
    "ride": ("Air", "Van", "Gig"),
}
"""What each field offers; no two choices begin alike."""
PAGES = {3: ((2,),), 4: ((1, 1), (3,)), 5: ((2, 1), (1, 2)), 6: ((2, 2),)}
"""Fields to fill in per page, by the turns that takes: one for each field, one for each page."""
PATIENCE = 200
"""Draws per form after which the space counts as exhausted."""

Turns = Literal[3, 4, 5, 6]
Rate = Annotated[float, Field(ge=0, le=1)]


class Form:
    """One form under way. Raises StepError for a row that no form was made of."""

    def __init__(self, row: Row) -> None:
        try:
            told = json.loads(row["metadata"] or "")
            self.pages: list[list[str]] = told["pages"]
            self.goal: dict[str, str] = told["goal"]
        except (KeyError, TypeError, ValueError) as error:
            raise StepError(f"row {row.get('id')}: no form; generate the problems with `forms`") from error
        self.page, self.values, self.saved = 0, {}, False

    @property
    def fields(self) -> list[str]:
        """Labels of the fields on the page that is shown."""
        return self.pages[self.page]

    @property
    def button(self) -> str:
        """Label of its button."""
        return "save" if self.page + 1 == len(self.pages) else "next"

    @property
    def filled(self) -> bool:
        """Whether every value that was asked for is there."""
        return all(self.values.get(label) == value for label, value in self.goal.items())

    def screen(self) -> str:
        """The page as text."""
        return "\n".join([*(f"{label}={self.values.get(label, '')}" for label in self.fields), f"[{self.button}]"])

    def act(self, action: str) -> bool:
        """Click on something; False, and nothing has changed, where the page does not show it."""
        said = action.strip()
        if self.saved:
            return False
        if said == self.button:
            self.saved = self.page + 1 == len(self.pages)
            self.page += not self.saved
            return True
        for label in self.fields:
            if said in CHOICES[label]:
                self.values[label] = said
                return True
        return False

    def expert(self) -> str:
        """What to do next: choose from top to bottom what was asked for on this page, then click on its button."""
        for label in self.fields:
            if label in self.goal and self.values.get(label) != self.goal[label]:
                return self.goal[label]
        return self.button

    def slip(self, rng: np.random.Generator) -> str:
        """Something else that can be done here: a choice that nobody asked for, or a click too early."""
        wrong = [one for label in self.fields for one in CHOICES[label] if one != self.goal.get(label)]
        likely = wrong if self.expert() == self.button else [*wrong, self.button]
        return likely[int(rng.integers(len(likely)))]


def forms(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    turns: Annotated[list[Turns], Field(min_length=1)] = [3, 4, 5, 6],  # noqa: B006 (never changed)
    idle: Annotated[int, Field(ge=0, le=2)] = 0,
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` distinct forms for the train or test split, cycling through `turns`, those that an expert needs.

    `idle` fields that nobody asks for stand on every form, somewhere. The difficulty is the row's family: `form3` to
    `form6`. Raises StepError when there are too few.
    """
    rng, rows = np.random.default_rng(seed), {}
    for _ in range(PATIENCE * size):
        row = _drawn(turns[len(rows) % len(turns)], idle, rng)
        if (int(row["id"], 16) < test_share * 2**64) == (split == "test"):
            rows.setdefault(row["id"], row)
        if len(rows) == size:
            return list(rows.values())
    raise StepError(
        f"forms: {PATIENCE * size} draws gave {len(rows)} {split} forms, {size} were asked for; lower `size`"
    )


def form_filler(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the expert's next turn in a form, or sometimes another possible action."""
    form = Form(row)
    for message in row["prompt"]:
        if message["role"] == "assistant":
            form.act(message["content"])
    return form.slip(rng) if rng.random() < error_rate else form.expert()


def _drawn(turns: int, idle: int, rng: np.random.Generator) -> Row:
    counts = PAGES[turns][int(rng.integers(len(PAGES[turns])))]
    labels = [str(label) for label in rng.permutation(list(CHOICES))[: sum(counts) + idle]]
    wanted, rest = labels[: sum(counts)], labels[sum(counts) :]
    starts = np.cumsum([0, *counts])
    pages = [wanted[start : start + count] for start, count in zip(starts, counts, strict=False)]
    for label in rest:
        pages[int(rng.integers(len(pages)))].append(label)
    pages = [[str(label) for label in rng.permutation(page)] for page in pages]
    goal = {str(label): CHOICES[str(label)][int(rng.integers(3))] for label in rng.permutation(wanted)}
    return _row(turns, pages, goal)


def _row(turns: int, pages: Sequence[Sequence[str]], goal: Mapping[str, str]) -> Row:
    metadata = json.dumps({"goal": dict(goal), "pages": [list(page) for page in pages]})
    row = {"answer": None, "family": f"form{turns}", "metadata": metadata}
    row["id"] = hashlib.sha256(metadata.encode()).hexdigest()[:16]
    asked = " ".join(goal.values())
    return row | {"prompt": [{"role": "user", "content": f"{asked}\n{Form(row).screen()}"}]}
