"""Connections with a time limit for every phase, and a limit on how many are open."""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.serving.refusals import error_body
from flows.serving.rules import Rules

HEAD_BYTES = 32 * 1024
"""Most bytes of a request line with its headers."""
EVENTS_AT_ONCE = 64
"""HTTP events (heads, body chunks, ends) read from a connection before other connections get a turn."""
GRACE = 5.0
"""Seconds after the time limit of a request in which the application can still send the timeout error."""


class Paced(h11.Connection):
    """An HTTP parser that reports NEED_DATA when its allowance of events is used up."""

    allowance = EVENTS_AT_ONCE

    def next_event(self) -> Any:
        """Return the next event of a request."""
        if self.allowance == 0:
            return h11.NEED_DATA
        self.allowance -= 1
        return super().next_event()


class Connection(H11Protocol):
    """uvicorn's connection with time limits."""

    def __init__(self, *args: Any, rules: Rules, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rules = rules
        self.conn: Paced = Paced(h11.SERVER, HEAD_BYTES)
        self.phase: tuple[object, bool] | None = None
        self.since = 0.0
        self.overdue: asyncio.TimerHandle | None = None
        self.stalled: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> bool:
        """Whether a request has arrived whose response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the time limit for the first request; if there are too many connections, close the longest idle one."""
        super().connection_made(transport)
        self._note_phase()
        if len(self.connections) > self.rules.max_queue + self.rules.spare_connections:
            idle = [c for c in self.connections if isinstance(c, Connection) and not c.under_way]
            min(idle, key=lambda connection: connection.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        for clock in (self.overdue, self.stalled):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data."""
        self.conn.allowance = EVENTS_AT_ONCE
        super().data_received(data)
        self._note_phase()
        self._give_way()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.conn.allowance = EVENTS_AT_ONCE
        super().on_response_complete()
        self._note_phase()
        self._give_way()

    def pause_writing(self) -> None:
        """Start the time limit for a client that reads too slowly."""
        super().pause_writing()
        if self.stalled is None:
            self.stalled = self.loop.call_later(self.rules.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit for a slow client, which has read."""
        super().resume_writing()
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None

    def send_400_response(self, msg: str) -> None:
        """Respond to data that is not valid HTTP."""
        self._refuse(400, msg)

    def _give_way(self) -> None:
        """Schedule further reading, after other connections had a turn, if the allowance was used up."""
        if self.conn.allowance == 0 and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.transport.is_closing():
            return
        self.conn.allowance = EVENTS_AT_ONCE
        self.handle_events()
        self._note_phase()
        self._give_way()
        if self.conn.allowance and not self.flow.read_paused:
            self.transport.resume_reading()

    def _note_phase(self) -> None:
        """Start the timer of the connection's current phase if the phase has changed."""
        phase = (self.cycle, self.under_way)
        if phase == self.phase or self.transport.is_closing():
            return
        if self.overdue is not None:
            self.overdue.cancel()
        self.phase, self.since = phase, self.loop.time()
        if self.under_way:
            seconds = self.rules.timeout + self.rules.body_seconds + GRACE
            self.overdue = self.loop.call_later(seconds, self.transport.abort)
        else:
            self.overdue = self.loop.call_later(self.rules.head_seconds, self._end_waiting)

    def _end_waiting(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(408, f"no whole request came within {self.rules.head_seconds:g} s")
        else:
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has begun already
            self.transport.abort()
            return
        body = json.dumps({"error": error_body(message, "invalid_request_error")}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        reply = h11.Response(status_code=status, headers=headers, reason=b"")
        for event in (reply, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
