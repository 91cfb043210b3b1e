"""`posttrain serve` as a process: it follows the champion, ends what is under way, hands over to vLLM."""

import json
import re
import signal
import threading

import openai
import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage.registry.champions import find_champion
from tests.flows.checkout import REPOSITORY
from tests.small_steps import TINY_DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
RECIPE = (
    """\
name: small
seed: 3
promote: {model: two, gate: exam, name: chat}
"""
    + TINY_DEFAULTS
    + """\
stages:
  one: {kind: init}
  two: {kind: init, seed: 4}
  exam:
    kind: evaluate
    models: {one: one, two: two}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    max_completion_length: 4
    num_bootstrap: 100
    gate: {metric: accuracy, min: 0.0}
"""
)
VLLM = """
import json, os, sys
told = {name: os.environ.get(name) for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE")}
print(json.dumps({"words": sys.argv[1:], "told": told}))
"""


@pytest.mark.slow
def test_a_server_follows_the_champion_without_failing_a_request_and_ends_in_peace(checkout, processes):
    made = checkout("serving", RECIPE)
    made.finish(made.run("inprocess"))
    first = find_champion(made.layout, "chat")
    server = made.start("serve", "mlflow:chat@champion", "--follow", "--port", "0", "--max-slots", "1")
    output = made.output
    processes.wait_for(lambda: server.poll() is not None or "Ctrl-C ends it" in output.read_text(), 240)
    text = output.read_text()
    assert f"serving mlflow:chat@champion, version 1: small.two ({first.key[:12]}) as `chat`" in text
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/v1", text)

    taken = made.start("serve", "two", "--port", port)
    assert taken.wait(240) == 3
    assert f"port {port} of 127.0.0.1 is taken" in made.output.read_text()

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=240)
    seen, failed, done = [], [], threading.Event()

    def ask():
        while not done.is_set():
            try:
                made = client.completions.create(model="chat", prompt="ab", max_tokens=20, seed=1)
                seen.append((made.system_fingerprint, made.choices[0].text))
            except openai.APIError as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        made.finish(made.start("run", made.recipe, "--executor", "inprocess", "--set", "stages.two.seed=6"))
        second = find_champion(made.layout, "chat")
        assert second.version == 2
        processes.wait_for(lambda: seen[-1][0] == f"posttrain-{second.digest[:12]}", 240)
        made.finish(made.start("rollback", "chat"))
        processes.wait_for(lambda: seen[-1][0] == f"posttrain-{first.digest[:12]}", 240)
    finally:
        done.set()
        asking.join(240)
    assert not failed
    prints = [print for print, _ in seen]
    changes = [b for a, b in zip([None, *prints], prints, strict=False) if a != b]
    assert changes == [f"posttrain-{digest[:12]}" for digest in (first.digest, second.digest, first.digest)]
    assert len(set(seen)) == 2  # each champion its own words, always the same

    stream = iter(client.completions.create(model="chat", prompt="ab", max_tokens=90, n=20, seed=1, stream=True))
    parts = [next(stream)]
    server.send_signal(signal.SIGTERM)
    parts += list(stream)
    ends = [choice.finish_reason for part in parts for choice in part.choices if choice.finish_reason]
    assert len(ends) == 20
    assert server.wait(120) == 0
    assert output.read_text().rstrip().endswith("ended")
    assert "now serving mlflow:chat@champion, version 2" in output.read_text()
    client.close()


@pytest.mark.slow
def test_vllm_gets_the_folder_and_takes_the_process_over(checkout, tiny_policy_folder):
    stands_in = tiny_policy_folder.parent / "site/vllm/entrypoints/openai"
    stands_in.mkdir(parents=True)
    for folder in (stands_in, stands_in.parent, stands_in.parents[1]):
        (folder / "__init__.py").touch()  # without these an installed vLLM would be found first
    (stands_in / "api_server.py").write_text(VLLM)
    made = checkout("vllm", RECIPE)
    words = ("serve", tiny_policy_folder, "--engine", "vllm", "--port", "8123", "--name", "mine", "--max-length", "64")
    made.finish(made.start(*words, PYTHONPATH=f"{stands_in.parents[2]}:{REPOSITORY}"))
    record = json.loads(made.output.read_text().splitlines()[-1])
    assert record["words"] == [
        "--host",
        "127.0.0.1",
        "--port",
        "8123",
        "--model",
        str(tiny_policy_folder),
        "--max-num-seqs",
        "32",
        "--served-model-name",
        "mine",
        "--max-model-len",
        "64",
    ]
    assert record["told"] == {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def test_what_cannot_be_served_is_refused(tiny_policy_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def refused(*words):
        done = CliRunner().invoke(app, ["serve", *map(str, words)])
        assert done.exception.exit_code == 3
        return str(done.exception)

    assert "vllm is not installed" in refused(tiny_policy_folder, "--engine", "vllm")
    assert "--follow is for mlflow:NAME@champion" in refused(tiny_policy_folder, "--follow")
    assert "nothing here is called 'nobody'" in refused("nobody")
    assert refused("mlflow:chat@champion") == (
        "mlflow:chat@champion: there is no champion yet; see: posttrain champions"
    )
    assert "path:./x: no such folder" in refused("path:./x")
