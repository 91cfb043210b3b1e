"""`${env:NAME}` in settings: a reference in recipes, plans, keys and manifests, a value only while a step runs."""

import os
import re
from typing import Any

from flows.processes.redaction import SHORTEST, make_redactor
from schemas.errors import StepError

REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def resolve_references(value: Any) -> Any:
    """Settings with every reference replaced by the variable's value. Raises StepError for one that is not set."""
    if isinstance(value, dict):
        return {k: resolve_references(v) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve_references(v) for v in value]
    return REFERENCE.sub(_read_variable, value) if isinstance(value, str) else value


def find_secrets(settings: Any) -> frozenset[str]:
    """The values that references in the settings stand for, where they are set and long enough to be hidden."""
    if isinstance(settings, dict | list):
        inner = settings.values() if isinstance(settings, dict) else settings
        return frozenset().union(*map(find_secrets, inner))
    names = REFERENCE.findall(settings) if isinstance(settings, str) else []
    return frozenset(v for v in map(os.environ.get, names) if v is not None and len(v) >= SHORTEST)


def redact(value: Any, secrets: frozenset[str]) -> Any:
    """Text, or JSON with texts in it, in which every secret is `***`, however it is written down."""
    return make_redactor(secrets).value(value)


def _read_variable(reference: re.Match[str]) -> str:
    if reference[1] not in os.environ:
        raise StepError(
            f"the environment variable {reference[1]} is not set; the recipe refers to it as {reference[0]}"
        )
    return os.environ[reference[1]]
