"""Access rules and limits of a served endpoint: hosts, token, queue, timeouts."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.errors import PlanError

TOKEN_VARIABLE = "POSTTRAIN_SERVE_TOKEN"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Rules:
    """Rules and limits that do not depend on the model."""

    hosts: frozenset[str] = frozenset()
    """Further names that a Host header may have: `NAME` with any port, `NAME:PORT` with that port only."""
    token: str | None = None
    """Bearer token that the Authorization header must hold; None: no token is required."""
    max_queue: int = 128
    """Most requests for completions that are read, waiting or answered at the same time."""
    timeout: float = 600.0
    """Seconds from the head of a request to the end of its response."""
    head_seconds: float = 10.0
    """Seconds in which a client must send the head of a request, and the rest of a refused request."""
    body_seconds: float = 20.0
    """Seconds in which a client must send a body."""
    stall_seconds: float = 30.0
    """Seconds for which a client may stop reading its response."""
    spare_connections: int = 128
    """Most connections beyond `max_queue`; if there are more, the one that has been idle longest is closed."""

    def allows_host(self, host: str, port: int) -> bool:
        """Return whether a Host header names this endpoint."""
        host = host.lower()
        if host in {f"{name}:{port}" for name in LOCAL_NAMES} or (port == 80 and host in LOCAL_NAMES):
            return True
        return host in self.hosts or host.rpartition(":")[0] in self.hosts


def read_rules(
    hosts: Sequence[str],
    token_variable: str | None,
    max_queue: int,
    timeout: float,
    environment: Mapping[str, str] = os.environ,
) -> Rules:
    """Return the rules from options of the command line. Raise PlanError for an invalid option."""
    if not math.isfinite(timeout):
        raise PlanError(f"--timeout {timeout}: give seconds")
    for host in hosts:
        if not host or host in ("0.0.0.0", "*", "::", "[::]") or not host.isascii() or set(host) & set("/@ ,"):
            raise PlanError(f"--host {host}: give the name that clients use, as `NAME` or `NAME:PORT`")
    return Rules(
        frozenset(map(str.lower, hosts)), _token(token_variable, environment), max_queue=max_queue, timeout=timeout
    )


def _token(variable: str | None, environment: Mapping[str, str]) -> str | None:
    name = variable or TOKEN_VARIABLE
    token = environment.get(name)
    if token is None and variable is None:
        return None
    if not token:
        raise PlanError(f"{name}: the environment variable of the endpoint's token is not set or empty")
    if not all("!" <= character <= "~" for character in token):
        raise PlanError(f"{name}: a token is of printable ASCII characters without spaces, as HTTP headers require")
    return token
