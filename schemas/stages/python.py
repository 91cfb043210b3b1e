"""kind: python — a user-defined function."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.references import AnyRef, ArtifactType
from schemas.stages.base import BaseStage
from schemas.use import FunctionUse


class Python(BaseStage):
    """Call `function(context, *, options...)`; it reads `context.input(name)` and writes to `context.output(name)`."""

    fan_port: ClassVar = "inputs"

    shares_tokens: ClassVar = False
    runs_user_code: ClassVar = True

    kind: Literal["python"]
    function: FunctionUse
    """`use: package.module:function` and its options."""
    inputs: dict[str, AnyRef] = {}
    """Inputs of the function: name to reference."""
    produces: dict[str, ArtifactType] = Field(default={"result": "directory"}, min_length=1)
    """Outputs of the function: name to artifact type, the default output first."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the declared outputs."""
        return dict(self.produces)
