"""Tools of MCP servers (Model Context Protocol): child processes that talk over stdin and stdout, or HTTP servers."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.references import AnyRef

OWN_HOSTS = ("127.0.0.1", "localhost", "::1")


def mcp(
    query: str,
    *,
    command: list[str] = [],  # noqa: B006 (never changed; a recipe needs the default to be readable)
    folder: AnyRef | None = None,
    url: str | None = None,
    hosts: list[str] = [],  # noqa: B006
    tool: str | None = None,
    argument: str | None = None,
    seconds: Annotated[float, Field(gt=0)] = 10.0,
) -> str:
    """Call a tool of an MCP server: the query `add {"a": 1, "b": 2}` names it with its arguments as JSON.

    `command` starts the server in `folder` for each call, so that no call sees another one's state; `url` is that of a
    running one on this machine, or on one of `hosts`. `tool` fixes the tool, so that the query has the arguments only;
    `argument` is the one that gets the query as text. A call ends after `seconds`. Needs the package `mcp`.
    """
    server = choose_server("tool mcp", command, folder, url, hosts)
    name, arguments = _read_call(query.strip(), tool, argument)
    return asyncio.run(_call(server, name, arguments, seconds))


def choose_server(what: str, command: list[str], folder: AnyRef | None, url: str | None, hosts: list[str]) -> Any:
    """Return what a client connects to: an address, or how to start a program. Raise StepError, beginning with `what`.

    An address must be of this machine, or of one of `hosts`.
    """
    if bool(command) == bool(url):
        raise StepError(f"{what}: give either `command` (a program) or `url` (a running server)")
    if url and (host := urlsplit(url).hostname) not in (*OWN_HOSTS, *hosts):
        raise StepError(f"{what}: {url} is not on this machine; name {host} in `hosts` to allow it")
    return url or _make_command(what, command, folder)


def _read_call(query: str, tool: str | None, argument: str | None) -> tuple[str, JsonObject]:
    """Return tool and arguments. Raise ValueError for a query that is no call."""
    name, _, rest = (tool, "", query) if tool is not None else query.partition(" ")
    if argument is not None:
        return name, {argument: rest.strip()}
    try:
        arguments: Any = json.loads(rest or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not name or not isinstance(arguments, dict):
        form = '{"name": value}' if tool is not None else 'tool {"name": value}'
        raise ValueError(f"write the call as {form}, with the arguments as JSON")
    return name, arguments


def _make_command(what: str, command: list[str], folder: AnyRef | None) -> Any:
    """Return how to start a server; `python` is the interpreter of this step. Raise StepError without the package."""
    try:
        from mcp import StdioServerParameters  # an optional dependency
    except ImportError as error:
        raise StepError(f"{what}: {error}: pip install 'posttrain[environments]'") from error
    program = sys.executable if command[0] == "python" else command[0]
    cwd = None if folder is None else Path(folder)
    return StdioServerParameters(command=program, args=command[1:], cwd=cwd, encoding_error_handler="replace")


async def _call(server: Any, name: str, arguments: JsonObject, seconds: float) -> str:
    """Return the text of a result. Raise ValueError if the call fails or takes too long."""
    from mcp import Client, MCPError  # an optional dependency

    try:
        async with asyncio.timeout(seconds):
            async with Client(server) as client:
                result = await client.call_tool(name, arguments)
    except TimeoutError as error:
        raise ValueError(f"no answer within {seconds:g} seconds") from error
    except MCPError as error:
        raise ValueError(str(error)) from error
    return read_result(result)


def read_result(result: Any) -> str:
    """Return the text of a result. Raise ValueError for one that is an error."""
    texts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if result.is_error:
        raise ValueError("\n".join(texts) or "the tool failed")
    return "\n".join(texts)
