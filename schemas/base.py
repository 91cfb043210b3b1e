"""The base class of all schemas."""

from typing import Any

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]
"""A JSON object without a fixed schema: settings of a stage, details of a step, a document of another standard."""


class Schema(BaseModel):
    """A frozen value that refuses unknown keys; the docstring under a field documents it (`schemas.field_docs`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
