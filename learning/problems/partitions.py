"""Parts of problems that another stage made."""

from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import read_rows
from schemas.errors import StepError
from schemas.references import PromptsRef


def part(
    *, data: PromptsRef, number: Annotated[int, Field(ge=1)], of: Annotated[int, Field(ge=1)]
) -> list[dict[str, Any]]:
    """Part `number` (from 1) of `of` parts that share no problem, each as large as the others to within one."""
    if number > of:
        raise StepError(f"part: number {number} of {of} parts")
    return read_rows(data, "prompts")[number - 1 :: of]
