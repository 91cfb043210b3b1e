"""kind: python — a function of the user's own."""

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

    kind: Literal["python"]
    function: FunctionUse
    """`use: package.module:function` and its options."""
    inputs: dict[str, AnyRef] = {}
    """Name to reference."""
    produces: dict[str, ArtifactType] = Field(default={"result": "directory"}, min_length=1)
    """Name to artifact type of each output, the default first."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the declared outputs."""
        return dict(self.produces)
