"""Environment `web` in a real browser: the same episodes as without it, and a browser that hangs costs no run."""

import json
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from learning.environments.browser import find_chromium
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.toy_tasks.web_shop import Order, Shop, Visit, act, list_actions, make_order_row, read_order, solve
from learning.toy_tasks.web_site import read_address, write_address, write_page
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse
from tests.learning.environments.test_web import ORDER, PLAN, SHOP
from tests.waiting import wait_for

ODD = Shop(
    shelves={"cup": ["<b>red</b> cup", '"blue" & cup'], "pot": ["50%?page=1 pot"]},
    options={"<b>red</b> cup": ["size"], '"blue" & cup': [], "50%?page=1 pot": ["wrap"]},
    offer="50%?page=1 pot",
    searches=True,
)
"""Names that would be markup, or parts of an address."""
MISTAKES = [
    "",
    "buy",
    "click",
    "click Shop",
    "click  shop",
    "click shop\nclick shop",
    "search",
    "search jug",
    "fill",
    "fill code",
]
MISTAKES += ["fill name K7", "click thank you", "search cu\np", "hover cup", "CLICK shop", "click size", "click code"]
TEXTS = [
    "K7",
    " K7 ",
    "K7\nclick buy",
    "a\r\nb\rc",
    "é 漢字 😀",
    "<b>&amp;'\"",
    "a\tb",
    "K7&product=red pen",
    "x" * 300,
    "\u2028\u200b",
    "%41+",
]


def make(**options):
    return build_environment(EnvUse.model_validate({"use": "web", **options}), {})


def chromiums():
    """Return the browser's own processes below this one."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if one.is_running() and "chrom" in one.name()]


@pytest.fixture(scope="module")
def browser():
    try:
        find_chromium()
    except StepError as error:
        pytest.skip(str(error))
    made = make(browser="chromium", penalty=0.25, seconds=120)
    yield made
    made.browser.close()
    wait_for(lambda: not chromiums())


def transcript(world, row, actions):
    """Return what an episode shows: its first state, and for each action the outcome, the state and what is saved."""
    episode = world.begin(row, 0)
    seen = [episode.state_name, episode.save()]
    for action in actions:
        outcome = episode.step(action)
        seen += [outcome, episode.state_name, episode.save()]
        if outcome.done:
            break
    return seen


def draw_actions(row, rng, count):
    """Return actions that the pages allow, with mistakes among them; the last one buys where it can."""
    (shop, order), now, actions = read_order(row), Visit(), []
    for _ in range(count):
        allowed = [one for one in list_actions(shop, order, now) if one != "click buy"]
        if now.page in shop.options:
            allowed += [f"fill code {TEXTS[int(rng.integers(len(TEXTS)))]}"] * 2
        action = str(allowed[int(rng.integers(len(allowed)))])
        if rng.random() < 0.25:
            action = MISTAKES[int(rng.integers(len(MISTAKES)))]
        actions.append(action)
        now = act(shop, now, action) or now
    return [*actions, "click buy"]


@pytest.mark.parametrize("searches", [True, False])
def test_episodes_are_the_same_in_the_browser(browser, searches):
    use = {"use": "web_orders", "size": 3, "split": "train", "seed": 8, "clicks": [3, 6, 8] if searches else [5, 7, 8]}
    use["searches"] = searches
    rows = bind(ProblemsUse.model_validate(use))()
    rng = np.random.default_rng(int(searches))
    visits = [(row, way) for row in rows for way in (solve(*read_order(row), Visit()), draw_actions(row, rng, 7))]
    text = make(penalty=0.25)
    expected = [transcript(text, *visit) for visit in visits]
    with ThreadPoolExecutor(3) as pool:  # steps of several episodes run in threads
        assert list(pool.map(lambda visit: transcript(browser, *visit), visits)) == expected
    earned = [one[-3].reward for one in expected]
    assert earned[::2] == [1.0] * len(rows)
    assert min(earned) <= 0


def test_names_and_texts_of_any_kind_are_the_same_in_the_browser(browser):
    text = make(penalty=0.25)
    row = make_order_row(ODD, Order("<b>red</b> cup", {"size": "large"}, TEXTS[5]), 4)
    actions = ["search cup", "click <b>red</b> cup", "click large", "click small", "click large"]
    actions += [f"fill code {one}" for one in TEXTS]
    ways = [[*actions, f"fill code {TEXTS[5]}", "click buy"], [*actions[:3], "click buy"]]
    ways.append(
        [
            "search cup",
            'click "blue" & cup',
            "fill code x",
            "click cup",
            "click shop",
            "click 50%?page=1 pot",
            "click boxed",
            "click buy",
        ]
    )
    ways.append(["click kitchen", "click cup", *MISTAKES, "click <b>red</b> cup", *MISTAKES, "click buy"])
    rewards = []
    for way in ways:
        expected = transcript(text, row, way)
        assert transcript(browser, row, way) == expected
        rewards.append(expected[-3].reward)
    assert rewards == [1.0, 0.0, 0.0, 0.0]


def test_a_saved_visit_continues_in_another_page_of_the_browser(browser):
    row, text = make_order_row(SHOP, ORDER, 6), make()
    for place in (1, 5, 6):
        one, other = text.begin(row, 0), browser.begin(row, 0)
        for action in PLAN[:place]:
            one.step(action)
        other.step("click red pen")
        other.restore(json.loads(json.dumps(one.save())))
        assert other.state_name == one.state_name
        assert other.save() == one.save()
        assert [other.step(action) for action in PLAN[place:]] == [one.step(action) for action in PLAN[place:]]


def test_a_page_reaches_nothing_but_its_site(browser):
    visit = browser.begin(make_order_row(SHOP, ORDER, 6), 0).site
    ask = "url => fetch(url).then(answer => answer.status)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        urls = ("/cup", "/nothing", f"http://127.0.0.1:{server.getsockname()[1]}/", "http://another.test/cup")
        reached = [visit.page.run(lambda page, url=url: page.evaluate(ask, url)) for url in urls]
        assert reached == [200, 404, 404, 404]
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_a_lost_browser_costs_its_episode_and_the_next_one_has_a_new_browser(number, browser):
    row, before = make_order_row(SHOP, ORDER, 6), set(chromiums())
    world = make(browser="chromium", seconds=4)
    episode = world.begin(row, 0)
    assert episode.step(PLAN[0]).ok
    lost = set(chromiums()) - before
    for process in lost:
        process.send_signal(number)
    began = time.monotonic()
    outcome = episode.step(PLAN[1])
    assert time.monotonic() - began < 20
    assert (outcome.done, outcome.ok, outcome.reward) == (True, False, 0.0)
    assert outcome.observation.startswith("error: ")
    assert episode.state_name == "cup 1/2\n[red cup] [gold cup] [next] [shop]"
    following = world.begin(row, 0)
    assert [following.step(action).ok for action in PLAN] == [True] * 6
    if (
        number == signal.SIGSTOP
    ):  # Playwright's driver waits half a minute before it kills a browser that does not answer
        for process in lost:
            process.kill()
    wait_for(lambda: not any(process.is_running() for process in lost))
    assert browser.begin(row, 0).step(PLAN[0]).ok  # another environment's browser goes on
    world.browser.close()
    wait_for(lambda: set(chromiums()) <= before)


def test_addresses_lead_to_their_pages_and_to_nothing_else():
    for shop in (SHOP, ODD):
        waiting, seen = [Visit()], {Visit()}
        while waiting:
            visit = waiting.pop()
            assert read_address(shop, write_address(visit)) == visit
            assert "<h1>" in write_page(shop, visit)
            for action in list_actions(shop, Order("", {}, None), visit):
                after = act(shop, visit, action)
                if not after.bought and not after.chosen and after not in seen:
                    seen.add(after)
                    waiting.append(after)
        assert len(seen) > 6
    for address in (
        "/",
        "/jug",
        "/cup?page=9",
        "/cup?page=x",
        "/garden",
        "/do/search?q=jug",
        "/do/buy?product=jug",
        "/do/buy",
    ):
        assert read_address(SHOP, address) is None
    sent = read_address(SHOP, "/do/buy?product=blue+cup&size=large&wrap=boxed&code=K7&x=1")
    assert sent == Visit("blue cup", 0, (("size", "large"),), "K7", bought=True)
    assert read_address(SHOP, "/do/buy?product=blue+cup&size=huge&code=") == Visit("blue cup", bought=True)


def test_without_a_browser_it_is_named_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(StepError, match="there is no Chromium: install"):
        make(browser="chromium")
    (tmp_path / "chromium").write_text("")
    (tmp_path / "chromium").chmod(0o755)
    assert find_chromium() == str(tmp_path / "chromium")
    monkeypatch.setitem(sys.modules, "playwright", None)
    with pytest.raises(StepError, match=r"pip install 'posttrain\[browser\]'"):
        make(browser="chromium")


def test_line_breaks_of_what_is_typed_become_spaces():
    visit = act(SHOP, Visit("red pen"), "fill code K7\r\nclick\nbuy\r7")
    assert visit.code == "K7 click buy 7"
    assert act(SHOP, Visit(), "search cu\np") is None
