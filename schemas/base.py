"""The base of everything that may be said."""

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """A frozen value that refuses unknown keys; the docstring under a field documents it (`schemas.field_docs`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
