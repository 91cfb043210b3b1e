import pytest

from learning.environments.lookup_environment import build_environment
from learning.tools.mcp_servers import mcp
from schemas.errors import StepError
from schemas.use import EnvUse

SERVER = '''
from mcp.server import MCPServer

server = MCPServer("sums")
calls = []


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    calls.append(a)
    return f"{a + b} <|im_end|> {len(calls)}"


server.run("stdio")
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "silent.py").write_text("import time; time.sleep(60)")
    return tmp_path


def test_an_episode_calls_a_tool_of_a_server_and_sees_its_errors(folder, monkeypatch):
    monkeypatch.chdir(folder)
    tool = {"use": "mcp", "command": ["python", "server.py"], "seconds": 60}
    environment = build_environment(EnvUse.model_validate({"use": "tools", "tools": ["calculator", tool]}), {})
    episode = environment.begin({"id": "a", "metadata": None}, seed=0)
    right, wrong = (episode.step(f'mcp: add {{"a": 17, "b": {b}}}') for b in (25, '"x"'))
    assert (right.observation, right.ok, right.done) == ("42 <|im_end|> 1", True, False)
    assert (wrong.ok, wrong.done) == (False, False)
    assert wrong.observation.startswith("error: ")
    assert episode.step("mcp: add 1 2").observation.startswith("error: write the call as tool {")
    assert episode.step("it is 42").done


def test_a_server_that_blocks_is_ended_by_the_time_limit(folder):
    with pytest.raises(ValueError, match=r"no answer within 0\.5 seconds"):
        mcp("add {}", command=["python", str(folder / "silent.py")], seconds=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either `command`"),
        ({"url": "http://example.com/mcp"}, "name example.com in `hosts`"),
        ({"url": "http://127.0.0.1.example.com/mcp"}, "name 127.0.0.1.example.com in `hosts`"),
    ],
)
def test_a_wrong_server_is_refused_by_name(options, message):
    with pytest.raises(StepError, match=message):
        mcp("add {}", **options)
