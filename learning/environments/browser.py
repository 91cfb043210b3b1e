"""A headless Chromium for environments whose pages a real browser shows: no page reaches a network.

Playwright's objects belong to one event loop; calls of several threads wait for it, each with a limit on its time.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from learning.environments.event_loop import EventLoop
from learning.environments.time_limit import StepTimeout
from schemas.errors import StepError

T = TypeVar("T")
HOST = "site.test"
"""Host of all pages; nothing else is answered."""
START_SECONDS = 60.0
"""Most seconds that a browser may take to start."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-gpu")
"""No name of a host has an address."""
LOOP = EventLoop()
"""Loop of all browsers of a process."""
Serve = Callable[[str], str | None]
"""Returns the HTML behind an address without its host, or None."""


class PageLost(Exception):
    """The browser took too long, or has ended."""


def find_chromium() -> str | None:
    """Return the path of Chromium; None for the one that Playwright has installed. Raise StepError without either."""
    if importlib.util.find_spec("playwright") is None:
        raise StepError("browser: it needs the package playwright: pip install 'posttrain[browser]'")
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    own = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    if not any(own.glob("chromium*")):
        raise StepError(
            "browser: there is no Chromium: install your system's package, such as `apt-get install chromium`, or run "
            "`playwright install chromium`"
        )
    return None


class Browser:
    """Opens pages, each in a context of its own. The browser starts with the first one, and again if it is lost."""

    def __init__(self, seconds: float) -> None:
        """Set the most seconds of a call. Raise StepError if there is no browser."""
        self.path, self.seconds = find_chromium(), seconds
        self.starting = asyncio.Lock()
        self.running: list[tuple[Any, Any]] = []
        """Playwright and its browser; empty before the start."""
        weakref.finalize(self, _end_soon, self.running)

    def open_page(self, serve: Serve, address: str) -> "Page":
        """Return a page at an address of the site `serve`. Raise StepError if a new browser does not open it, either.

        A browser that does not open it is ended, and what plays in it is lost.
        """
        for is_last in (False, True):
            running = None
            try:
                running = run(self._start(), START_SECONDS)
                return Page(run(_open(running[1], serve, address, self.seconds), self.seconds), self.seconds)
            except PageLost as error:
                if running is not None and running in self.running:
                    self.close()
                if is_last:
                    raise StepError(f"browser: Chromium opens no page: {error}") from error
        raise AssertionError

    async def _start(self) -> tuple[Any, Any]:
        from playwright.async_api import async_playwright  # an optional dependency

        async with self.starting:
            if self.running and not self.running[0][1].is_connected():
                self.close()
            if not self.running:
                playwright = await async_playwright().start()
                arguments = [*ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
                try:
                    browser = await playwright.chromium.launch(
                        executable_path=self.path,
                        args=arguments,
                        handle_sigint=False,  # Ctrl-C is for the run
                        handle_sigterm=False,
                        handle_sighup=False,
                    )
                except BaseException:
                    await playwright.stop()
                    raise
                self.running.append((playwright, browser))
            return self.running[0]

    def close(self) -> None:
        """End the browser, soon; episodes that still play in it are lost."""
        ended, self.running[:] = [*self.running], []
        _end_soon(ended)


class Page:
    """A page of an episode; its context is closed when this object is no longer used."""

    def __init__(self, page: Any, seconds: float) -> None:
        self.page, self.seconds = page, seconds
        self.close = weakref.finalize(self, _close_soon, page.context)

    def run(self, call: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine of Playwright's page returns. Raise PageLost and close the page if it fails."""
        try:
            return run(call(self.page), self.seconds)
        except PageLost:
            self.close()
            raise


def run(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of a coroutine of Playwright. Raise PageLost if it fails, or takes longer."""
    from playwright.async_api import Error  # an optional dependency

    try:
        return LOOP.run(coroutine, seconds)
    except StepTimeout as error:
        raise PageLost(str(error)) from error
    except Error as error:
        raise PageLost(error.message.partition("\n")[0]) from error


async def _open(browser: Any, serve: Serve, address: str, seconds: float) -> Any:
    """Return a page of Playwright in a context of its own, which nothing but `serve` answers."""
    context = await browser.new_context(offline=True)

    async def answer(route: Any) -> None:
        address = urlsplit(route.request.url)
        html = serve(address._replace(scheme="", netloc="").geturl()) if address.hostname == HOST else None
        if html is None:
            await route.fulfill(status=404, body="")
        else:
            await route.fulfill(status=200, content_type="text/html; charset=utf-8", body=html)

    await context.route("**/*", answer)
    context.set_default_timeout(1000 * seconds)
    page = await context.new_page()
    await page.goto(f"http://{HOST}{address}")
    return page


def _end_soon(running: list[tuple[Any, Any]]) -> None:
    """End browsers without waiting for them: their driver kills those that do not answer."""
    for playwright, _ in running:
        LOOP.call(lambda playwright=playwright: _start_task(playwright.stop()))


def _close_soon(context: Any) -> None:
    LOOP.call(lambda: _start_task(context.close()))


TASKS: set[asyncio.Future[Any]] = set()
"""What runs without being waited for: the loop itself keeps no reference."""


def _start_task(work: Awaitable[Any]) -> None:
    async def finish() -> None:
        with contextlib.suppress(Exception):  # what is ended has already ended
            await work

    task = asyncio.ensure_future(finish())
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)
