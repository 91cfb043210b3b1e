"""The base class of all schemas."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]
"""A JSON object without a fixed schema: settings of a stage, details of a step, a document of another standard."""


class Schema(BaseModel):
    """A frozen value that refuses unknown keys; the docstring under a field documents it (`schemas.field_docs`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WithOptionalCode(Schema):
    """Settings that decide which optional parts of a task are used: those of stages, or of several kinds of stage."""

    # A command needs the stages of one recipe: the validators of the others take 60 ms to build.
    model_config = ConfigDict(defer_build=True)

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Return, for each optional part that a stage uses, the module and name of its code.

        `asked` are the names that the functions of its slots ask for. A task loads optional parts only through this
        method, so that the step's key covers exactly the code it uses.
        """
        return {}
