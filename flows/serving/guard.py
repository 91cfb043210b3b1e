"""Checks of every request before its body is read: host, origin, token, content type, length, queue."""

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.serving.observation import ANSWERED, Observation
from flows.serving.refusals import Refused
from flows.serving.rules import Rules

MAX_HEADERS = 100
OPEN_PATHS = ("/health",)
"""Paths that need no token, for health checks."""
LEFT = 499
"""Status that is counted for a request whose client left before a response."""
RETRY_AFTER = 2
"""Value of the Retry-After header, in seconds, for a client that was refused because the queue is full."""


class Guard:
    """An ASGI middleware that passes requests that the rules allow, at most `max_queue` completions at a time."""

    def __init__(self, app: ASGIApp, rules: Rules, observation: Observation):
        self.app, self.rules, self.observation, self.under_way = app, rules, observation, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond with the reason for its refusal; count it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = LEFT, self.observation.begin()

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass_on(scope, receive, send_counted)
        finally:
            self.observation.end(started, scope["method"], scope["path"], status, scope.get(ANSWERED, {}))

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_request(scope, self.rules)
            if scope["method"] == "POST":
                self._check_room()
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.under_way -= 1

    def _check_room(self) -> None:
        if self.under_way >= self.rules.max_queue:
            message = f"{self.under_way} requests are running or queued, which is the limit; try again later"
            raise Refused(message, code="queue_full", status=429, headers={"retry-after": str(RETRY_AFTER)})


def check_request(scope: Scope, rules: Rules) -> None:
    """Raise Refused if the head of a request breaks a rule."""
    headers = Headers(scope=scope)
    if len(scope["headers"]) > MAX_HEADERS:
        raise Refused(f"{len(scope['headers'])} headers, more than {MAX_HEADERS}", status=431)
    host = headers.get("host", "")
    if not rules.allows_host(host, scope["server"][1]):
        message = "the Host header names another server; use 127.0.0.1 or localhost, or start this one with --host NAME"
        raise Refused(message, code="unknown_host", status=421)
    # Browsers send Origin with the requests of a page; pages of other origins are refused.
    origins = {origin.lower() for origin in headers.getlist("origin")}
    if origins - {f"http://{host.lower()}", f"https://{host.lower()}"}:
        raise Refused("requests from web pages of other origins are refused", code="foreign_origin", status=403)
    if rules.token is not None and scope["path"] not in OPEN_PATHS:
        _check_token(headers, rules.token)
    if scope["method"] == "POST":
        _check_type(headers)


def _check_token(headers: Headers, token: str) -> None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    fits = hmac.compare_digest(credentials.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not fits:
        message = "a token is required: Authorization: Bearer TOKEN"
        raise Refused(message, code="invalid_api_key", status=401, headers={"www-authenticate": "Bearer"})


def _check_type(headers: Headers) -> None:
    kind, _, more = headers.get("content-type", "").lower().partition(";")
    if kind.strip() != "application/json" or more.strip() not in ("", "charset=utf-8", 'charset="utf-8"'):
        raise Refused("Content-Type must be application/json (UTF-8)", status=415)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("compressed bodies are not supported; send the body uncompressed", status=415)
    if "transfer-encoding" in headers and "content-length" in headers:
        raise Refused("Transfer-Encoding and Content-Length exclude each other")
