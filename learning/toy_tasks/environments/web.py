"""Environment `web`: a small web shop as pages of text (`learning.toy_tasks.web_shop`), or in a real browser."""

from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.environments.browser import Browser, PageLost
from learning.environments.protocol import Outcome
from learning.toy_tasks.web_shop import (
    Order,
    Shop,
    Visit,
    act,
    is_carried_out,
    read_order,
    restore_visit,
    save_visit,
    show_page,
)
from learning.toy_tasks.web_site import BrowserShop

REFUSED = "?"
"""First line of the answer to an action that the page does not allow."""


class Environment:
    """Visit a shop of the problems `web_orders`: the answer to a turn is the page that it leads to.

    Buying ends the episode, with reward 1 if the order was carried out. Nothing in it is random.
    """

    def __init__(
        self,
        *,
        penalty: Annotated[float, Field(ge=0)] = 0.0,
        browser: Literal["chromium"] | None = None,
        seconds: Annotated[float, Field(gt=0)] = 30.0,
    ) -> None:
        """Set what an action costs that the page does not allow: its reward is −`penalty`, and the page stays.

        With `browser` the pages are HTML in a headless Chromium, without a network, and the episodes the same: what is
        seen is read from the page, and actions are clicks and typing. An action that takes more than `seconds` there,
        or a browser that ends, costs the episode: it ends with a failed turn. Raise StepError if there is no browser.
        """
        self.penalty = penalty
        self.browser = None if browser is None else Browser(seconds)

    def begin(self, row: Row, seed: int) -> "Visiting":
        """Return an episode. Raise StepError for a row without an order, or with one that cannot be carried out."""
        shop, order = read_order(row)
        site = TextShop(shop) if self.browser is None else BrowserShop(shop, self.browser)
        return Visiting(site, order, self.penalty)


class TextShop:
    """A visit without a browser."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.now = shop, Visit()

    @property
    def text(self) -> str:
        """Return the page as the visitor sees it."""
        return show_page(self.shop, self.now)

    def act(self, action: str) -> bool:
        """Carry out an action, and return whether the page allowed it."""
        after = act(self.shop, self.now, action)
        self.now = after or self.now
        return after is not None

    def go(self, visit: Visit) -> None:
        """Continue from a state."""
        self.now = visit


class Visiting:
    """One visit."""

    def __init__(self, site: TextShop | BrowserShop, order: Order, penalty: float) -> None:
        self.site, self.order, self.penalty = site, order, penalty
        self.lost = ""

    @property
    def state_name(self) -> str:
        """Return the state by which turns are compared with each other: the page as the visitor sees it."""
        return self.site.text

    def step(self, action: str) -> Outcome:
        """Carry out an action; a browser that is lost ends the episode."""
        is_allowed = False
        try:
            is_allowed = not self.lost and self.site.act(action)
        except PageLost as error:
            self.lost = str(error)
        if self.lost:
            return Outcome(f"error: {self.lost}", done=True, ok=False)
        if not is_allowed:
            return Outcome(f"{REFUSED}\n{self.state_name}", reward=-self.penalty if self.penalty else 0.0, ok=False)
        after = self.site.now
        if after.bought:
            return Outcome(done=True, reward=float(is_carried_out(self.order, after)))
        return Outcome(self.state_name)

    def save(self) -> Row:
        """Return the state of the visit as JSON."""
        return save_visit(self.site.now)

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned; where a browser is lost, the next action ends the episode."""
        try:
            self.site.go(restore_visit(saved))
        except PageLost as error:
            self.lost = str(error)
