"""Errors in the format of the OpenAI API."""

from collections.abc import Mapping

from fastapi.responses import JSONResponse

LONGEST = 1000
"""Most characters of a message, as it may quote what a client sent."""
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "server_error"}
"""Error types by status; every other error is an `invalid_request_error`."""


class Refused(Exception):
    """A request that cannot be served."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ):
        self.message = message if len(message) <= LONGEST else message[:LONGEST] + "..."
        super().__init__(self.message)
        self.param, self.code, self.status, self.headers = quoted(param), code, status, dict(headers or {})

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        kind = KINDS.get(self.status, "invalid_request_error")
        content = {"error": error_body(self.message, kind, self.param, self.code)}
        return JSONResponse(content, self.status, self.headers)


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """Return the body of an error response."""
    return {"message": message, "type": kind, "param": param, "code": code}


def quoted(text: str | None, longest: int = 100) -> str | None:
    """Return a text from a client, cut after `longest` characters."""
    return text if text is None or len(text) <= longest else text[:longest] + "..."
