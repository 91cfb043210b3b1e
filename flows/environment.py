"""`${env:NAME}` in settings: a reference in recipes, plans, keys and manifests, a value only while a step runs."""

import os
import re
from typing import Any

from schemas.errors import StepError

REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def with_environment(value: Any) -> Any:
    """Settings with every reference replaced by the variable's value. Raises StepError for one that is not set."""
    if isinstance(value, dict):
        return {k: with_environment(v) for k, v in value.items()}
    if isinstance(value, list):
        return [with_environment(v) for v in value]
    return REFERENCE.sub(_value, value) if isinstance(value, str) else value


def _value(reference: re.Match[str]) -> str:
    if reference[1] not in os.environ:
        raise StepError(
            f"the environment variable {reference[1]} is not set; the recipe refers to it as {reference[0]}"
        )
    return os.environ[reference[1]]
