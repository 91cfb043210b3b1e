"""Rewards of crystals that a model writes: one function for each term, of which a stage makes a weighted sum.

A completion is `thoughts | K 0 0, F 2 2`: a crystal in two dimensions (`learning.data.lattices`). Every term of a text
that has no structure is 0. The metadata of a problem have its `composition`, its `cell`, and what is wanted.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from learning.data.lattices import (
    CHARGES,
    GROUPS,
    LARGEST,
    Composition,
    Structure,
    detect_group,
    find_lowest,
    is_neutral,
    is_spaced,
    measure_energy,
    measure_stiffness,
    read_stated_group,
    read_structure,
)
from learning.data.rows import Row, read_metadata
from schemas.base import Schema
from schemas.errors import StepError

Side = Annotated[int, Field(ge=1, le=LARGEST)]


class Request(Schema):
    """What is asked for."""

    composition: Annotated[dict[Literal["K", "M", "F", "O"], Side], Field(min_length=1)]
    """Atoms of each element in the cell."""
    cell: tuple[Side, Side]
    """Steps of the grid along both sides."""
    group: Literal["p1", "p2", "pm", "pmm", "p4m"] | None = None
    """A plane group."""
    stiffness: tuple[float, float] | None = None
    """The least and the largest stiffness."""

    @model_validator(mode="after")
    def check_size(self) -> "Request":
        """Refuse more atoms than sites, and a range that has no middle."""
        if sum(self.composition.values()) > min(LARGEST, self.cell[0] * self.cell[1]):
            raise ValueError(f"there are more atoms than sites, or more than {LARGEST}")
        if self.stiffness is not None and not self.stiffness[0] < self.stiffness[1]:
            raise ValueError("the least stiffness is not below the largest")
        return self

    @property
    def atoms(self) -> Composition:
        """Return the composition in the order of the elements."""
        return tuple((element, self.composition[element]) for element in CHARGES if element in self.composition)


def read_request(row: Row) -> Request:
    """Return the request of a row. Raise StepError for another row."""
    metadata = read_metadata(row)
    try:
        return Request.model_validate({key: metadata[key] for key in Request.model_fields if key in metadata})
    except ValidationError as error:
        raise StepError(
            f"row {row.get('id')}: no request for a crystal; it needs `composition` such as "
            '{"K": 1, "F": 1} (elements K, M, F, O), `cell` such as [4, 4], and what is wanted: `group` (one of '
            f"{', '.join(GROUPS)}) or `stiffness` ([least, largest]): {error.errors()[0]['msg']}"
        ) from error


def formed(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 for a text with one `|`, after which a structure in the cell of the request stands, else 0."""
    return _score(rows, completions, lambda request, structure: 1.0)


def spaced(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if all atoms and their images in other cells are at least 1.2 steps apart, else 0."""
    return _score(rows, completions, lambda request, structure: is_spaced(structure))


def neutral(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the charges of the cell add up to 0, else 0."""
    return _score(rows, completions, lambda request, structure: is_neutral(structure))


def composed(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the structure has the composition of the request, else 0."""
    return _score(rows, completions, _is_composed)


def stable(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 − e/2 up to e = 1 and 1/(2e) above, for e the energy per atom above that of the best structure known.

    0 unless the structure is spaced, neutral and of the right composition.
    """
    return _score(rows, completions, _measure_stability)


def consistent(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the thoughts before the coordinates state one plane group and the structure has it, else 0."""
    stated = [read_stated_group(text) for text in completions]
    detected = [None if made is None else detect_group(made) for _, made in _read(rows, completions)]
    return [float(said is not None and said == found) for said, found in zip(stated, detected, strict=True)]


def grouped(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if a spaced and neutral structure has exactly the plane group of the request, else 0.

    A request without a group cannot be scored.
    """
    scores = _score(rows, completions, _has_group)
    return [None if read_request(row).group is None else score for row, score in zip(rows, scores, strict=True)]


def stiff(rows: list[Row], completions: list[str]) -> list[float | None]:
    """y = 1 − 2z², where z is the distance of the stiffness from the middle of the range asked for, over its length.

    Below 0 it is exp(y) − 1, so that it falls with every distance and stays above −1. 0 unless the structure is spaced,
    neutral and of the right composition. A request without a stiffness cannot be scored.
    """
    scores = _score(rows, completions, _measure_nearness)
    return [None if read_request(row).stiffness is None else score for row, score in zip(rows, scores, strict=True)]


def _read(rows: list[Row], completions: list[str]) -> list[tuple[Request, Structure | None]]:
    requests = [read_request(row) for row in rows]
    return [(asked, read_structure(text, asked.cell)) for asked, text in zip(requests, completions, strict=True)]


def _score(
    rows: list[Row], completions: list[str], measure: Callable[[Request, Structure], float]
) -> list[float | None]:
    read = _read(rows, completions)
    return [0.0 if structure is None else float(measure(request, structure)) for request, structure in read]


def _is_composed(request: Request, structure: Structure) -> bool:
    return structure.composition == request.atoms


def _is_valid(request: Request, structure: Structure) -> bool:
    return is_spaced(structure) and is_neutral(structure) and _is_composed(request, structure)


def _measure_stability(request: Request, structure: Structure) -> float:
    if not _is_valid(request, structure):
        return 0.0
    above = measure_energy(structure) - find_lowest(request.atoms, request.cell)
    return 1.0 - 0.5 * above if above <= 1.0 else 0.5 / above


def _has_group(request: Request, structure: Structure) -> bool:
    return is_spaced(structure) and is_neutral(structure) and detect_group(structure) == request.group


def _measure_nearness(request: Request, structure: Structure) -> float:
    if request.stiffness is None or not _is_valid(request, structure):
        return 0.0
    least, largest = request.stiffness
    z = (measure_stiffness(structure) - (least + largest) / 2) / (largest - least)
    y = 1.0 - 2.0 * z * z
    return y if y >= 0 else math.exp(y) - 1.0
