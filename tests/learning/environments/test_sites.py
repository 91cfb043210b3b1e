"""A site over HTTP: requests that are made once and tried again, and a reading agent that turns pages."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from learning.environments import site as site_environment
from learning.environments.lookup_environment import build_environment
from learning.environments.page_client import PageClient, PageError, cut_segments, read_html
from schemas.errors import StepError
from schemas.use import EnvUse
from tests.page_sites import serve_pages

PAGES = {
    "p0": {"title": "bam river", "paragraphs": ["It rained.", "bam river zed.", "The fair is in autumn."]},
    "p1": {"title": "tok river", "paragraphs": ["Nothing here <b>& there</b>."]},
}
ROW = {"id": "a", "prompt": [{"role": "user", "content": "river of bam?"}], "answer": "zed", "metadata": None}
SEEN = []


def reads(row, rng):
    """A reader that notes every segment's first word, up to two segments."""
    text = row["prompt"][-1]["content"]
    SEEN.append(text)
    return text.rpartition("\n")[2].split()[0] + ("\nmore" if len(SEEN) < 2 else "")


def make(url, **options):
    use = {"use": "site", "url": url, "reader": "line_reader", "segment": 30, "backoff": 0.0, **options}
    return build_environment(EnvUse.model_validate(use), {})


def begin(url, **options):
    return make(url, **options).begin(ROW, 0)


def test_a_search_lists_pages_and_a_read_shows_notes_alone():
    with serve_pages(pages=PAGES) as (url, _):
        episode = begin(url)
        assert episode.step("search: bam river").observation == "p0 bam river\np1 tok river"
        assert episode.step("read: p0 bam river").observation == "bam river zed."
        failed = [episode.step(text) for text in ("search: x", "search:", "read: p0", "read: p9 x", "read: p1 bam")]
        assert [one.observation for one in failed] == [
            "error: no page has one of these words",
            "error: write search: and what is asked",
            "error: write read: and an address and what is asked",
            "error: status 404",
            "error: nothing about that",
        ]
        assert not any(one.ok or one.done for one in failed)
        assert episode.step("zed").done
        assert begin(url, longest=3).step("read: p0 bam river").observation == "bam..."


def test_an_address_is_asked_for_once_by_all_episodes_and_threads():
    with serve_pages(pages=PAGES) as (url, counts):
        world = make(url)
        episodes = [world.begin(ROW, seed) for seed in range(6)]
        threads = [threading.Thread(target=one.step, args=("search: bam river",)) for one in episodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for episode in episodes:
            assert episode.step("read: p0 bam river").observation == "bam river zed."
        assert counts == {"/search?q=bam+river&top=5": 1, "/p0": 1}


def test_what_fails_for_a_while_is_tried_again():
    with serve_pages(fails=1.0, pages=PAGES) as (url, counts):
        episode = begin(url)
        assert episode.step("search: bam river").ok
        assert episode.step("read: p0 bam river").ok
        assert set(counts.values()) == {2}
        assert begin(url, max_retries=0).step("read: p1 x").observation.startswith("error: no answer after 1 tries")


class Moods(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        status, headers, body = self.server.moods[self.path.lstrip("/")]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def moody():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moods)
    server.asked, server.moods = [], {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def client_of(server, **options):
    limits = {"timeout": 5.0, "max_retries": 2, "backoff": 0.0, **options}
    return PageClient(f"http://127.0.0.1:{server.server_port}", [], **limits)


def test_only_what_may_pass_is_tried_again(moody):
    moody.moods = {"a": (429, {"Retry-After": "0"}, b""), "b": (503, {}, b""), "c": (403, {}, b""), "d": (302, {}, b"")}
    client = client_of(moody)
    for address, message in (("a", "3 tries: status 429"), ("b", "3 tries: status 503"), ("c", "403"), ("d", "302")):
        with pytest.raises(PageError, match=message):
            client.get(address)
    assert [path[1] for path in moody.asked] == list("aaabbbcd")
    moody.moods["search?q=x&top=3"] = (200, {}, b'{"results": [{"title": "no address"}]}')
    with pytest.raises(PageError, match="no list of results"):
        client.search("x", 3)


def test_a_huge_page_and_other_hosts_are_refused(moody, monkeypatch):
    monkeypatch.setattr("learning.environments.page_client.MAX_BYTES", 10)
    moody.moods = {"a": (200, {}, b"x" * 11)}
    client = client_of(moody)
    with pytest.raises(PageError, match="more than"):
        client.get("a")
    for address in ("http://169.254.1.1/a", "//other/a", "file:///etc/passwd", "http://[", "https://127.0.0.1/x"):
        with pytest.raises(PageError, match=r"no address|not an address of this site"):
            client.get(address)
    assert moody.asked == ["/a"]


def test_the_oldest_answer_is_forgotten(moody, monkeypatch):
    monkeypatch.setattr("learning.environments.page_client.MAX_KEPT", 2)
    moody.moods = {name: (200, {}, name.encode()) for name in "abc"}
    client = client_of(moody)
    assert [client.get(name) for name in "abcab"] == [b"a", b"b", b"c", b"a", b"b"]
    assert "".join(path[1] for path in moody.asked) == "abcab"


def test_a_reader_turns_pages_with_its_notes():
    SEEN.clear()
    with serve_pages(pages=PAGES) as (url, _):
        shown = begin(url, reader=f"{__name__}:reads", segment=20).step("read: p0 what?").observation
    assert shown == "It\nbam"
    assert len(SEEN) == 2
    assert "Known so far:\n\n" in SEEN[0]
    assert "Question: what?\n\nKnown so far:\nIt\n\nPage:\nbam river zed." in SEEN[1]


def test_a_policy_reads_pages(monkeypatch, tmp_path):
    asked = []

    def replies(folder, questions, *, n, sampling, seed):
        asked.append((folder, questions[0][0]["content"], sampling.temperature))
        return [["note\nmore"]] if len(asked) == 1 else [None]

    monkeypatch.setattr(site_environment, "sample_replies", replies)
    use = EnvUse.model_validate({"use": "site", "url": "http://127.0.0.1:9", "model": "m", "segment": 20})
    world = build_environment(use, {"env.model": tmp_path})
    assert world.extract(ROW, "q", "one\ntwo three four five six", None) == "note"
    assert [(folder, temperature) for folder, _, temperature in asked] == [(str(tmp_path), 0.0)] * 2


def test_pages_are_read_as_text():
    page = "<html><head><title>t</title></head><p>a  <b>b</b></p><script>x<y</script><div>c &amp; d<br>e</div></html>"
    assert read_html(page) == "a b\nc & d\ne"
    assert read_html("<p>open <script>never closed") == "open"
    assert cut_segments("aaa\nbb\ncccccc", 6) == ["aaa\nbb", "cccccc"]
    assert cut_segments("abcdefgh", 3) == ["abc", "def", "gh"]
    assert cut_segments("", 3) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": None}, "either `command`"),
        ({"url": "http://example.org"}, "name example.org in `hosts`"),
        ({"reader": None}, "either `reader`"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(StepError, match=message):
        make(**{"url": "http://127.0.0.1:9", **options})
