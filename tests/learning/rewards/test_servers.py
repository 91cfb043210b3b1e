"""Rewards of a server: batches, retries, order, and answers that stop the step with address, row and value."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from learning.environments.local_server import LocalServer
from learning.lookup import bind
from schemas.errors import RecipeError, StepError
from schemas.package import ROOT
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse

SILENT = 60
"""Seconds after which a silent request is let go in any case."""


class ScoreServer:
    """Answers each request by `answer(samples)`, after the failures that `script` lists: statuses, `drop`, `silent`."""

    def __init__(self, answer, script=()):
        self.answer, self.script = answer, list(script)
        self.bodies, self.headers, self.over = [], [], threading.Event()
        self.url = ""


@contextmanager
def serve(answer, script=()):
    state = ScoreServer(answer, script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.bodies.append(body)
            state.headers.append(dict(self.headers))
            failure = state.script.pop(0) if state.script else None
            if failure == "silent":
                state.over.wait(SILENT)
            if failure in ("drop", "silent"):
                self.close_connection = True
                return
            made = b"busy" if failure else json.dumps(state.answer(body["samples"])).encode()
            self.send_response(failure or 200)
            self.send_header("Retry-After", "0.001")
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(made)))
            self.end_headers()
            self.wfile.write(made)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}/score"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def is_right(samples):
    return {"scores": [float(s["completion"] == s["answer"]) for s in samples]}


ROWS = [
    {
        "id": f"row-{i}",
        "prompt": [{"role": "user", "content": f"{i}+1="}],
        "answer": str(i + 1),
        "family": "sums",
        "metadata": json.dumps({"i": i}),
    }
    for i in range(7)
]
TEXTS = ["1", "no", "3", "\ud800", "5", "", "7"]
RIGHT = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]


def score(server, rows=ROWS, texts=TEXTS, **options):
    use = {"use": "servers.http", "url": server.url, "backoff": 0, "timeout": 20, **options}
    return bind(RewardUse.model_validate(use)).ask(0, {"rows": rows, "completions": texts})


def test_samples_go_out_in_batches_with_the_columns_of_their_rows():
    with serve(is_right) as server:
        assert score(server, batch_size=3, max_concurrency=1) == RIGHT
        assert [len(body["samples"]) for body in server.bodies] == [3, 3, 1]
        assert server.bodies[1]["samples"][1] == {
            "id": 4,
            "prompt": [{"role": "user", "content": "4+1="}],
            "completion": "5",
            "answer": "5",
            "family": "sums",
            "metadata": {"i": 4},
        }
        assert score(server, rows=[], texts=[]) == []


def test_the_shipped_server_scores_right_answers_with_1():
    served = LocalServer("test", ["python", "server.py", "--port", "{port}"], ROOT / "data/servers/score")
    try:
        use = RewardUse.model_validate(f"http://127.0.0.1:{served.port}/score")
        assert bind(use).ask(0, {"rows": ROWS, "completions": TEXTS}) == RIGHT
    finally:
        served.end()


def test_an_address_alone_is_a_reward():
    with serve(lambda samples: [True, None]) as server:
        reward = bind(RewardUse.model_validate(server.url))
        assert reward.ask(0, {"rows": ROWS[:2], "completions": ["a", "b"]}) == [1.0, None]


def test_scores_with_ids_may_come_in_any_order_and_batches_may_end_in_any_order():
    first = threading.Event()

    def last_batch_first(samples):
        if samples[0]["id"] == 0:
            assert first.wait(SILENT)
        else:
            first.set()
        return {"scores": [{"id": s["id"], "score": s["id"] / 2} for s in reversed(samples)]}

    with serve(last_batch_first) as server:
        assert score(server, batch_size=4, max_concurrency=2) == [i / 2 for i in range(7)]


@pytest.mark.parametrize("script", [[503, 429, "drop"], [408], [500, 500, 500, 500, 500]])
def test_failures_that_may_pass_are_tried_again(script):
    with serve(is_right, script) as server:
        assert score(server) == RIGHT
        assert len(server.bodies) == len(script) + 1
        assert all(body == server.bodies[0] for body in server.bodies)


def test_a_silent_server_is_cut_off_and_named_with_its_rows_and_the_number_of_tries():
    with serve(is_right, ["silent"] * 2) as server:
        shown = server.url
        server.url += "?token=hidden"
        with pytest.raises(StepError) as error:
            score(server, timeout=0.05, max_retries=1)
    assert str(error.value) == (
        f"reward server {shown}: no scores for rows row-0 to row-6 after 2 tries; the last one: no answer within 0.05 s"
    )


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (401, 1), (302, 1), (503, 3)])
def test_a_refusal_is_not_tried_again_and_ends_the_step(status, tries):
    with serve(is_right, [status] * 9) as server:
        with pytest.raises(StepError, match=rf"/score: .*rows row-0 to row-6.*status {status}: busy"):
            score(server, max_retries=2)
        assert len(server.bodies) == tries


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"scores": [1.0]}, "1 scores for 2 samples"),
        ({"scores": "all good"}, "its answer has no list `scores`"),
        ({"scores": [1.0, "0.5"]}, "row row-1: the score is 0.5, not a finite number"),
        ({"scores": [1.0, float("nan")]}, "row row-1: the score is nan, not a finite number"),
        ({"scores": [10**400, 1]}, "row row-0: the score is 1000"),
        ({"scores": [{"id": 0, "score": 1}, {"id": 0, "score": 1}]}, r"each id once, not \{'id': 0"),
        ({"scores": [{"id": 0, "score": 1}, 1.0]}, "each id once, not 1.0"),
        ([[1], [2]], r"row row-0: the score is \[1\]"),
    ],
)
def test_a_wrong_answer_is_named_with_row_and_value(answer, message):
    with serve(lambda samples: answer) as server, pytest.raises(StepError, match=message) as error:
        score(server, rows=ROWS[:2], texts=TEXTS[:2])
    assert server.url in str(error.value)


def test_a_server_that_is_not_there_is_named():
    with serve(is_right) as server:
        pass
    with pytest.raises(StepError, match=r"rows row-0 to row-6 after 1 tries; the last one: ConnectError"):
        score(server, max_retries=0)


RECIPE = """
stages:
  base: {kind: init}
  prompts: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4}]}
  rl: {kind: rl, algorithm: grpo, model: base, prompts: prompts, max_steps: 1, rewards: [REWARD]}
"""


def test_secrets_of_a_recipe_stay_references(tmp_path, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "a-very-secret-token")
    file = tmp_path / "recipe.yaml"
    secret = '{use: servers.http, url: "http://127.0.0.1:9/", headers: {Authorization: "Bearer ${env:REWARD_TOKEN}"}}'
    file.write_text(RECIPE.replace("REWARD", secret))
    settings = load_recipe(file).steps["rl"].stage.model_dump_json()
    assert "${env:REWARD_TOKEN}" in settings
    assert "a-very-secret" not in settings


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ('{use: servers.http, url: "http://127.0.0.1/", headers: {X-Api-Key: abc}}', r"X-Api-Key.*\$\{env:NAME\}"),
        ('{use: servers.http, url: "http://ann:pw@127.0.0.1/"}', "plans would show the password"),
        ('{use: servers.http, url: "ftp://127.0.0.1/"}', "url"),
        ('"http://ann:pw@127.0.0.1/"', "plans would show the password"),
    ],
)
def test_a_secret_that_is_written_out_and_a_wrong_address_are_refused(tmp_path, reward, message):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.replace("REWARD", reward))
    with pytest.raises(RecipeError, match=message) as error:
        load_recipe(file)
    assert "pw@" not in str(error.value)


def test_the_server_of_the_documentation_scores(tmp_path):
    page = (ROOT / "docs/rewards.md").read_text()
    code = re.search(r"^```python file=my_lab/reward_server.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    namespace = {"__name__": "documented"}
    exec(code[1], namespace)
    namespace["Handler"].log_message = lambda *words: None
    with ThreadingHTTPServer(("127.0.0.1", 0), namespace["Handler"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        reward = bind(RewardUse.model_validate(f"http://127.0.0.1:{server.server_port}/score"))
        assert reward.ask(0, {"rows": ROWS[:2], "completions": [" 1\n", "1"]}) == [1.0, 0.0]
        server.shutdown()
        thread.join()
