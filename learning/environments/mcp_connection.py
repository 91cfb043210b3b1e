"""A connection to an MCP server that is kept for many calls, with a thread and an event loop of its own."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from learning.environments.event_loop import EventLoop
from learning.environments.time_limit import StepTimeout
from learning.tools.mcp_servers import read_result
from schemas.base import JsonObject

T = TypeVar("T")
START_SECONDS = 60.0
"""Time that a server has to start."""
CONNECTION_CLOSED = -32000
"""Code of the protocol's error for a server that has ended."""
LOOP = EventLoop()
"""Loop of all connections of a process."""


class McpConnection:
    """Calls of one server's tools; the server of a command is started by the first call and ends with this object."""

    def __init__(self, server: Any, seconds: float) -> None:
        self.server, self.seconds = server, seconds
        self.serving: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[Any] | None = None
        self.closing: asyncio.Event | None = None

    def list_tools(self) -> list[JsonObject]:
        """Return the tools of the server as OpenAI's schemas. Raise ValueError if it does not answer."""
        result = self._run(lambda client: client.list_tools(), START_SECONDS)
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in result.tools
        ]

    def call(self, name: str, arguments: JsonObject) -> str:
        """Return the text of a tool's result. Raise ValueError if the call fails or takes too long."""
        return read_result(self._run(lambda client: client.call_tool(name, arguments), self.seconds))

    def close(self) -> None:
        """Leave the server; the next call connects again."""
        if self.closing is not None:
            LOOP.call(self.closing.set)

    def _run(self, ask: Callable[[Any], Awaitable[T]], seconds: float) -> T:
        async def work(client: Any) -> T:
            return await ask(client)

        try:
            client = LOOP.run(self._connect(), START_SECONDS)
            return LOOP.run(work(client), seconds)
        except (StepTimeout, TimeoutError):
            raise ValueError(f"no answer within {seconds:g} seconds") from None
        except Exception as error:  # the protocol's own errors, and those of a server that has ended
            if getattr(error, "code", CONNECTION_CLOSED) == CONNECTION_CLOSED:
                self.close()
            raise ValueError(str(error) or type(error).__name__) from error

    async def _connect(self) -> Any:
        if self.serving is None or self.serving.done() or (self.closing is not None and self.closing.is_set()):
            self.ready, self.closing = asyncio.get_running_loop().create_future(), asyncio.Event()
            self.serving = asyncio.create_task(_serve(self.server, self.ready, self.closing))
            weakref.finalize(self, LOOP.call, self.closing.set)
        assert self.ready is not None
        return await asyncio.shield(self.ready)


async def _serve(server: Any, ready: "asyncio.Future[Any]", closing: asyncio.Event) -> None:
    """Hold a connection until `closing`; a client must be left by the task that entered it."""
    from mcp import Client  # an optional dependency

    try:
        async with Client(server) as client:
            ready.set_result(client)
            await closing.wait()
    except Exception as error:  # of the start goes to who waits for it; after it, calls report what is wrong
        if not ready.done():
            ready.set_exception(error)
