"""What this machine enforces of the sandbox, in words for `posttrain doctor`."""

import ctypes

from learning.sandbox.child import CREATE_RULESET
from learning.sandbox.run import available

SINCE = ((1, "files"), (3, "truncation"), (4, "TCP"), (5, "devices"), (6, "signals"))
"""From which version on Landlock itself refuses what; seccomp refuses all of it but files in any version."""


def enforced() -> tuple[bool, str]:
    """Whether programs of models can run here, and what holds them."""
    if reason := available():
        return False, reason
    version = ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, 1)
    parts = ", ".join(name for since, name in SINCE if version >= since)
    return True, (
        f"sandbox for programs of models: Landlock {version} ({parts}), seccomp (no network, process, thread or "
        "signal), limits (memory, time, files, output)"
    )
