"""Tools with OpenAI's schemas: functions and MCP servers, called in episodes, and shown by chat templates."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import uvicorn
from mcp.server import MCPServer

from learning.environments.local_server import LocalServer
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.toy_tasks.shops import shop_assistant
from schemas.errors import StepError
from schemas.package import ROOT
from schemas.use import EnvUse, ProblemsUse

HERE = "tests.learning.environments.test_openai_tools"
STOCK = {"use": "openai_tools", "command": ["python", "server.py"], "folder": str(ROOT / "data/servers/stock")}
COUNTER = '''
from mcp.server import MCPServer

server = MCPServer("counter", log_level="ERROR")
calls = []


@server.tool()
def count() -> str:
    """Number of calls so far."""
    calls.append(1)
    if len(calls) == 3:
        import os
        os._exit(1)
    return str(len(calls))


server.run("stdio")
'''


def repeat(word: str, times: int = 2) -> str:
    """Repeat a word.

    This is not shown.
    """
    if times > 9:
        raise RuntimeError("too often")
    return word * times


def bare(word):
    return word


def make(**options):
    return build_environment(EnvUse.model_validate({"use": "openai_tools", **options}), {})


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_function_is_described_called_and_its_mistakes_are_answered():
    environment = make(functions=[f"{HERE}:repeat"], response="{result}", longest=8)
    assert environment.tools == [
        {
            "type": "function",
            "function": {
                "name": "repeat",
                "description": "Repeat a word.",
                "parameters": {
                    "type": "object",
                    "properties": {"word": {"type": "string"}, "times": {"type": "integer", "default": 2}},
                    "required": ["word"],
                    "additionalProperties": False,
                },
            },
        }
    ]
    episode = environment.begin({"id": "a", "tools": environment.tools}, seed=0)
    both = episode.step(f"I repeat {call('repeat', word='ab')}{call('repeat', word='c', times=3)}")
    assert (both.observation, both.ok, both.done) == ("abab\nccc", True, False)
    environment.longest = 200
    for turn, text in {
        call("repeat", word="a", times="x"): "error: times: Input should be a valid integer",
        call("repeat", word="a", more=1): "error: more: Extra inputs are not permitted",
        call("repeat", word="a", times=10): "error: too often",
        call("reprat"): "error: no tool reprat; there are repeat",
        "<tool_call>{": "error: write a call as <tool_call>",
    }.items():
        outcome = episode.step(turn)
        assert outcome.observation.startswith(text)
        assert (outcome.ok, outcome.done) == (False, False)
    assert episode.step("abab").done


def test_all_tools_of_a_stdio_server_are_offered_and_called():
    environment = make(**STOCK, server_per="step", functions=[f"{HERE}:repeat"])
    assert environment.names == ["repeat", "stock", "price"]
    wanted = {"use": "offered", "of": {"use": "shop_questions", "split": "test", "size": 9}, "env": STOCK}
    rows = bind(ProblemsUse.model_validate(wanted), "problems")()
    assert [[tool["function"]["name"] for tool in row["tools"]] for row in rows] == [["stock", "price"]] * 9
    for row in rows:
        case = json.loads(row["metadata"])
        outcome = environment.begin(row, 0).step(call(case["tool"], shop=case["shop"], item=case["item"]))
        assert outcome.observation == f"<tool_response>\n{row['answer']}\n</tool_response>"
    wrong = environment.begin(rows[0], 0).step(call("stock", shop="x"))
    assert (wrong.ok, "stockArguments" in wrong.observation) == (False, True)
    with pytest.raises(StepError, match="row a offers the tool other; there are repeat, stock, price"):
        environment.begin({"id": "a", "tools": [{"function": {"name": "other"}}]}, 0)


def test_a_server_is_there_per_episode_and_starts_again_after_it_ended(tmp_path):
    (tmp_path / "server.py").write_text(COUNTER)
    environment = make(command=["python", "server.py"], folder=str(tmp_path), response="{result}", seconds=60)
    first, second = environment.begin({"id": "a"}, 0), environment.begin({"id": "b"}, 0)
    assert [first.step(call("count")).observation for _ in range(2)] == ["1", "2"]
    assert second.step(call("count")).observation == "1"
    ended = first.step(call("count"))
    assert (ended.ok, ended.done) == (False, False)
    assert first.step(call("count")).observation == "1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give `functions`, or a server"),
        ({"functions": [f"{HERE}:bare"]}, "tool bare: annotate its parameter word"),
        ({"functions": [f"{HERE}:repeat", f"{HERE}:repeat"]}, "two tools are called repeat|give"),
        ({"url": "http://example.com/mcp"}, "name example.com in `hosts`"),
        ({"functions": [f"{HERE}:repeat"], "response": "x"}, r"must contain \{result\}"),
        ({"command": ["python", "-c", "1"]}, "does not list its tools"),
    ],
)
def test_wrong_tools_are_refused_by_name(options, message):
    with pytest.raises(StepError, match=message):
        make(**options)


@pytest.fixture
def address():
    """The address of an MCP server over HTTP on this machine."""
    server = MCPServer("sums", log_level="ERROR")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{port}/mcp"
    running.should_exit = True
    thread.join()


def test_tools_of_a_server_over_http_are_offered_and_called_in_parallel_episodes(address):
    environment = make(url=address, response="{result}", server_per="step", seconds=60)
    assert environment.names == ["add"]
    with ThreadPoolExecutor(4) as pool:
        outcomes = pool.map(
            lambda n: environment.begin({"id": "a"}, n).step(call("add", a=n, b=1)).observation, range(12)
        )
    assert list(outcomes) == [str(n + 1) for n in range(12)]
    environment.shared.close()


def test_the_shipped_server_answers_over_http_what_it_answers_over_stdio():
    command = ["python", "server.py", "--port", "{port}"]
    served = LocalServer("test", command, ROOT / "data/servers/stock")
    try:
        environment = make(url=f"http://127.0.0.1:{served.port}/mcp", server_per="step", seconds=60)
        [row] = bind(ProblemsUse.model_validate({"use": "shop_questions", "split": "test", "size": 1}), "problems")()
        episode = environment.begin(row, 0)
        seen = episode.step(shop_assistant(row, np.random.default_rng(0)))
        assert seen.observation == f"<tool_response>\n{row['answer']}\n</tool_response>"
        environment.shared.close()
    finally:
        served.end()
