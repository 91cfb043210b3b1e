"""The shops of `web_orders` as real pages: HTML with links, radio buttons, fields and forms, and a visit in a browser.

What a visitor chooses is in the page alone, so that it is lost with it; the site learns of it when the form is sent.
"""

import contextlib
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from learning.environments.browser import HOST, Browser, PageLost
from learning.toy_tasks.web_shop import (
    BUY,
    CODE,
    HOME,
    OPTIONS,
    PER_PAGE,
    Shop,
    Visit,
    as_typed,
    list_links,
    show_page,
)

SEARCH, ORDER = "/do/search", "/do/buy"
"""Addresses of searches and orders; those of pages have no second slash."""
NUMBER, PRODUCT, QUERY = "page", "product", "q"
READ = """() => {
  const texts = (within, names) => [...within.querySelectorAll(names)].map(e => `[${e.textContent}]`).join(" ");
  const chosen = [...document.querySelectorAll("fieldset input:checked")].map(e => [e.name, e.value]);
  const show = {
    H1: part => part.textContent,
    FIELDSET: part => {
      const value = part.querySelector("input:checked")?.value;
      return `${part.querySelector("legend").textContent}${value ? ` ${value}` : ""}: ${texts(part, "label")}`;
    },
    P: part => {
      const field = part.querySelector("input");
      return `${field.name}:${field.value && " "}${field.value}`;
    },
    NAV: part => texts(part, "a, button"),
  };
  return {
    text: [...document.querySelectorAll("h1, fieldset, p, nav")].map(part => show[part.tagName](part)).join("\\n"),
    address: location.pathname + location.search,
    chosen: chosen,
    code: document.querySelector("p input")?.value ?? "",
  };
}"""
"""What a visitor sees of the page, as text, and what was chosen on it."""
FIND = """text => ["label", "a, button"].flatMap(names => [...document.querySelectorAll(names)])
  .find(e => e.textContent === text) ?? null"""
FIND_FIELD = "name => [...document.querySelectorAll('p input')].find(e => e.name === name) ?? null"
IS_LISTED = "box => [...box.list.options].some(option => option.value === box.value)"


def write_address(visit: Visit) -> str:
    """Return the address of a page, without what was chosen on it."""
    return f"/{quote(visit.page, safe='')}" + (f"?{urlencode({NUMBER: visit.number})}" if visit.number else "")


def read_address(shop: Shop, address: str) -> Visit | None:
    """Return the state behind an address: a page, a search, or an order that is sent; None if there is none."""
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.path == SEARCH:
        return Visit(given[QUERY]) if given.get(QUERY) in shop.shelves else None
    if parts.path == ORDER:
        product = given.get(PRODUCT, "")
        if product not in shop.options:
            return None
        chosen = sorted((name, given[name]) for name in shop.options[product] if given.get(name) in OPTIONS[name])
        return Visit(product, 0, tuple(chosen), given.get(CODE, ""), bought=True)
    page, number = unquote(parts.path[1:]), given.get(NUMBER, "0")
    is_page = page in shop.options or page in _list_pages(shop)
    return Visit(page, int(number)) if is_page and number.isdecimal() and int(number) < _count(shop, page) else None


def _list_pages(shop: Shop) -> set[str]:
    """Return the pages that are no products."""
    first = Visit()
    departments = {name for name, visit in list_links(shop, first).items() if visit.page not in shop.options}
    return {HOME, *departments, *shop.shelves}


def _count(shop: Shop, page: str) -> int:
    return -(-len(shop.shelves.get(page, [""])) // PER_PAGE)


def write_page(shop: Shop, visit: Visit) -> str:
    """Return the HTML of a page on which nothing is chosen yet; of an order that was sent, a receipt."""
    if visit.bought:
        return _wrap("<h1>thank you</h1>")
    title = show_page(shop, visit).partition("\n")[0]
    parts = [f"<h1>{escape(title)}</h1>", *_write_form(shop, visit.page)]
    links = [
        f'<button form="order">{BUY}</button>'
        if target.bought
        else f'<a href="{escape(write_address(target))}">{escape(label)}</a>'
        for label, target in list_links(shop, visit).items()
    ]
    parts.append(f"<nav>{' '.join(links)}</nav>")
    if shop.searches:
        shelves = "".join(f'<option value="{escape(noun)}">' for noun in shop.shelves)
        box = f'<input name="{QUERY}" list="shelves" autocomplete="off">'
        parts.append(f'<form action="{SEARCH}" role="search">{box}<datalist id="shelves">{shelves}</datalist></form>')
    return _wrap("\n".join(parts))


def _write_form(shop: Shop, page: str) -> list[str]:
    """Return the form of a product: options, the field for a code; nothing for other pages."""
    if page not in shop.options:
        return []
    parts = [f'<form id="order" action="{ORDER}"><input type="hidden" name="{PRODUCT}" value="{escape(page)}">']
    for name in shop.options[page]:
        buttons = "".join(
            f'<label><input type="radio" name="{name}" value="{value}">{value}</label>' for value in OPTIONS[name]
        )
        parts.append(f"<fieldset><legend>{name}</legend>{buttons}</fieldset>")
    return [*parts, f'<p>{CODE} <input name="{CODE}" autocomplete="off"></p></form>']


def _wrap(body: str) -> str:
    return f"<!doctype html><html><head><meta charset=utf-8><title>shop</title></head><body>{body}</body></html>"


class Site:
    """Answers the requests of a visit, and keeps the order that was sent."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.sent = shop, Visit()

    def serve(self, address: str) -> str | None:
        """Return the HTML behind an address; None if there is none."""
        visit = read_address(self.shop, address)
        if visit is None:
            return None
        if visit.bought:
            self.sent = visit
        return write_page(self.shop, visit)


class BrowserShop:
    """A visit in a browser; actions are those of `learning.toy_tasks.web_shop.act`, with its pages as texts."""

    def __init__(self, shop: Shop, browser: Browser) -> None:
        """Open the first page. Raise StepError if the browser does not."""
        self.shop, self.site, self.now = shop, Site(shop), Visit()
        self.text = show_page(shop, self.now)
        self.page = browser.open_page(self.site.serve, write_address(self.now))
        with contextlib.suppress(PageLost):  # which the next action notices
            self._see(self.page.run(lambda page: page.evaluate(READ)))

    def act(self, action: str) -> bool:
        """Carry out an action, and return whether the page allowed it. Raise PageLost."""

        async def work(page: Any) -> tuple[bool, Mapping[str, Any]]:
            return await act_on_page(page, action), await page.evaluate(READ)

        is_allowed, seen = self.page.run(work)
        self._see(seen)
        return is_allowed

    def go(self, visit: Visit) -> None:
        """Go to a page, and choose and send what was chosen and sent. Raise PageLost."""

        async def work(page: Any) -> Mapping[str, Any]:
            await page.goto(f"http://{HOST}{write_address(visit)}")
            for _, value in visit.chosen:
                await act_on_page(page, f"click {value}")
            if visit.code:
                await act_on_page(page, f"fill {CODE} {visit.code}")
            return await page.evaluate(READ)

        self.site.sent = Visit()
        self._see(self.page.run(work))
        if visit.bought:
            self.act(f"click {BUY}")

    def _see(self, seen: Mapping[str, Any]) -> None:
        """Take note of what the page shows; of a receipt only what was bought."""
        if self.site.sent.bought:
            self.now = self.site.sent
            return
        place = read_address(self.shop, seen["address"]) or Visit()
        chosen = tuple(sorted((name, value) for name, value in seen["chosen"]))
        self.now, self.text = Visit(place.page, place.number, chosen, seen["code"]), seen["text"]


async def act_on_page(page: Any, action: str) -> bool:
    """Carry out an action as a visitor does: by clicks, typing and the Enter key; return whether the page allows it."""
    verb, _, rest = action.strip().partition(" ")
    if verb == "search":
        box = await page.query_selector("[role=search] input")
        if box is None:
            return False
        await box.fill(as_typed(rest))
        if not await box.evaluate(IS_LISTED):
            return False
        async with page.expect_navigation():
            await box.press("Enter")
        return True
    if verb == "fill":
        name, _, text = rest.partition(" ")
        field = (await page.evaluate_handle(FIND_FIELD, name)).as_element()
        if field is None or not text:
            return False
        await field.fill(as_typed(text))
        return True
    found = (await page.evaluate_handle(FIND, rest)).as_element() if verb == "click" else None
    if found is None:
        return False
    if await found.evaluate("e => e.tagName") == "LABEL":
        await found.click(force=True)
    else:
        async with page.expect_navigation():
            await found.click(force=True)
    return True
