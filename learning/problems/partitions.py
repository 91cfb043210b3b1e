"""Partitions of the problems of another stage."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row, read_rows
from schemas.errors import StepError
from schemas.references import PromptsRef


def part(*, data: PromptsRef, number: Annotated[int, Field(ge=1)], of: Annotated[int, Field(ge=1)]) -> list[Row]:
    """Take part `number` (from 1) of `of` disjoint parts of a stage's problems, of equal size to within one."""
    if number > of:
        raise StepError(f"problems part: number {number} is above the {of} parts; lower it")
    return read_rows(Path(str(data)), "prompts")[number - 1 :: of]
