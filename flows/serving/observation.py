"""What an operator sees of the endpoint: metrics for Prometheus, and a line of JSON per request; never any content."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from flows.servers.log_rotation import rotate_log
from flows.serving.canary_metrics import CanaryCollector
from flows.serving.current import Current
from schemas.errors import PlanError

PATHS = frozenset(
    {"/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/feedback", "/v1/canary"}
)
"""Paths with a label of their own; all others share one, so that clients cannot make labels without end."""
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the histogram of durations, in seconds."""
LOG_BYTES = 20_000_000
"""Size at which the request log is rotated."""
CONTENT_TYPE = CONTENT_TYPE_LATEST
ANSWERED = "posttrain.answered"
"""Key of a request's ASGI scope: the model that answers, its digest, the id of the response, its arm of a canary."""


class Observation:
    """Counters of one endpoint; used in its event loop only."""

    def __init__(self, current: Current, log: Path | None = None):
        self.current = current
        self.registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self.requests = Counter("posttrain_serve_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "posttrain_serve_request_seconds",
            "Seconds from the head of a request to the end of its response.",
            ("path",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.active = Gauge("posttrain_serve_active_requests", "Requests in progress.", registry=self.registry)
        self.healthy = Gauge("posttrain_serve_healthy", "1 if /health responds with 200.", registry=self.registry)
        self.model = Gauge(
            "posttrain_serve_model_since_seconds",
            "Time at which the served model was loaded.",
            ("name", "digest"),
            registry=self.registry,
        )
        self.arm_seconds = Histogram(
            "posttrain_serve_canary_seconds",
            "Seconds from the head of a request to the end of its response, by the arm of a canary that gave it.",
            ("arm",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(CanaryCollector(current))
        self.log = log
        if log is not None:
            _verify_writable(log)

    def begin(self) -> float:
        """Count a request in; return its start for `end`."""
        self.active.inc()
        return time.monotonic()

    def end(self, started: float, method: str, path: str, status: int, answered: Mapping[str, str]) -> None:
        """Count a request out, and write its line of the log; `answered` names the model of a completion."""
        seconds, route = time.monotonic() - started, path if path in PATHS else "other"
        method = method if method in ("GET", "POST", "HEAD") else "other"
        self.active.dec()
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if "arm" in answered:
            self.arm_seconds.labels(answered["arm"]).observe(seconds)
        if self.log is not None:
            line = {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": method,
                "path": route,
                "status": status,
                "seconds": round(seconds, 4),
                "model": self.current.served.name,
                "digest": self.current.served.chosen.digest,
                **answered,
            }
            rotate_log(self.log, LOG_BYTES)
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        served = self.current.served
        self.healthy.set(self.current.failure is None)
        self.model.clear()
        self.model.labels(served.name, served.chosen.digest or "").set(served.since)
        return generate_latest(self.registry)


def _verify_writable(file: Path) -> None:
    try:
        file.open("ab").close()
    except OSError as error:
        raise PlanError(f"--request-log {file} cannot be written: {error.strerror}") from error
