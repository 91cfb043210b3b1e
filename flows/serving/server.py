"""`posttrain serve` with the torch engine: one process, one engine thread, until Ctrl-C or SIGTERM."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import uvicorn

from flows.processes.stop_signals import STOP_SIGNALS, handle_signals
from flows.serving.app import make_app
from flows.serving.canary import CanaryOptions, open_canary
from flows.serving.connections import Connection
from flows.serving.current import Current, Limits, load
from flows.serving.models import Chosen
from flows.serving.rules import Rules
from lineage.layout import Layout
from schemas.errors import PlanError

HOST = "127.0.0.1"
CLOSE_SECONDS = 30
"""Seconds in which responses in progress may still end."""


class Server(uvicorn.Server):
    """Uvicorn's server, which ends with exit code 0 on a signal, and immediately on a second one."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report that it is ready."""
        await super().startup(sockets)
        self.ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM as requests to end."""

        def end() -> None:
            self.force_exit = self.should_exit
            self.should_exit = True

        with handle_signals(STOP_SIGNALS, end):
            yield


def serve(
    chosen: Chosen,
    layout: Layout,
    limits: Limits,
    rules: Rules,
    *,
    port: int,
    dtype: str | None,
    follow: bool,
    say: Callable[[str], None],
    request_log: Path | None = None,
    canary: CanaryOptions | None = None,
) -> int:
    """Serve on 127.0.0.1 until asked to end; return the exit code. Raise PlanError if the port is taken."""
    listening = listen(port)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    say(f"loading {chosen.description}")
    current = Current(load(chosen, limits, device, dtype))
    if canary is not None:
        open_canary(current, canary, layout, limits, device, dtype, say)
    if follow:
        current.follow(layout, limits, device, dtype, say)
    address = f"http://{HOST}:{listening.getsockname()[1]}/v1"

    def ready() -> None:
        served = current.served.chosen  # of a canary that had passed before: its challenger
        say(f"serving {served.description} as `{served.name}` at {address} ({device}, {dtype}); Ctrl-C ends it")
        if current.canary is not None:
            say(f"{current.canary.describe()}; {address}/canary")

    gc.freeze()  # else every collection traverses all modules and the model, which delays requests
    try:
        asyncio.run(Server(configuration(make_app(current, rules, request_log), rules), ready).serve([listening]))
    finally:
        gc.unfreeze()
        current.close()
    say("ended")
    return 0


def configuration(app: Any, rules: Rules) -> uvicorn.Config:
    """Return uvicorn's configuration: limited connections, HTTP only, no forwarding headers."""
    return uvicorn.Config(
        app,
        # uvicorn calls this as it would call the class.
        http=cast(Any, partial(Connection, rules=rules)),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        server_header=False,
        proxy_headers=False,
    )


def listen(port: int) -> socket.socket:
    """Return a socket on 127.0.0.1, bound before the model is loaded. Raise PlanError if the port is taken."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
    except OSError as error:
        opened.close()
        raise PlanError(f"port {port} of {HOST} is taken: {error.strerror}; choose another: --port 8001") from error
    return opened
