"""Description, for `posttrain doctor`, of the sandbox restrictions that this machine enforces."""

import ctypes

from learning.sandbox.child import CREATE_RULESET
from learning.sandbox.run import available

SINCE = ((1, "files"), (3, "truncation"), (4, "TCP"), (5, "devices"), (6, "signals"))
"""Landlock version to what it restricts from then on; seccomp refuses all of these except files in any version."""


def enforced() -> tuple[bool, str]:
    """Return whether programs of models can run on this machine, and a description of the restrictions."""
    if reason := available():
        return False, reason
    version = ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, 1)
    parts = ", ".join(name for since, name in SINCE if version >= since)
    return True, (
        f"sandbox for programs of models: Landlock {version} ({parts}), seccomp (no network, process, thread or "
        "signal), limits (memory, time, files, output)"
    )
