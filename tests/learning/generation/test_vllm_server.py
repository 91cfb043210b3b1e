"""vLLM's own server with OpenAI's protocol as another way in: the same tokens and log-probabilities."""

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec

import psutil
import pytest
import torch

from learning.api.spending import SpendingAccount
from learning.generation.engines.openai import Engine
from learning.generation.engines.torch import Engine as TorchEngine
from learning.models.policy import save_policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.endpoint import Endpoint
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,  # the server alone takes a minute to start
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30], [11, 12]]
SECONDS = 540
OPTIONS = {
    "--host": "127.0.0.1",
    "--dtype": "float32",
    "--max-model-len": "512",
    "--served-model-name": "policy",
    "--logprobs-mode": "processed_logprobs",
    "--generation-config": "vllm",
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture
def server(wide_policy, tmp_path):
    """Address of a server of the policy."""
    save_policy(wide_policy, tmp_path / "policy")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word for pair in OPTIONS.items() for word in pair]
    log_file = (tmp_path / "server.txt").open("w")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            tmp_path / "policy",
            "--port",
            str(port),
            "--enforce-eager",
            *words,
        ],
        env=os.environ | ENVIRONMENT,
        stdout=log_file,
        stderr=subprocess.STDOUT,
    )
    try:
        address, read_log = f"http://127.0.0.1:{port}/health", (tmp_path / "server.txt").read_text
        wait_for(
            lambda: answers(address), SECONDS, alive=lambda: process.poll() is None, said=lambda: read_log()[-4000:]
        )
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        members = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, timeout=60)
        log_file.close()


def answers(address):
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
        return True
    return False


@pytest.mark.timeout(900)
def test_the_server_says_what_the_policy_says(wide_policy, server, tmp_path):
    endpoint = Endpoint(base_url=server, model="policy", name="local", timeout=300)
    engine = Engine(wide_policy, SpendingAccount(tmp_path / "remote", "a-step"), endpoint=endpoint)
    greedy = [Request(ids, 1, seed) for seed, ids in enumerate(PROMPTS)]
    ours = engine.generate(greedy, Sampling(0.0, 16))
    theirs = TorchEngine(wide_policy).generate(greedy, Sampling(0.0, 16))
    for (one,), (other,) in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    drawn = [Request(ids, 4, seed) for seed, ids in enumerate(PROMPTS)]
    sampled = engine.generate(drawn, Sampling(0.7, 16))
    assert len({tuple(g.token_ids) for made in sampled for g in made}) > 12
    for request, made in zip(drawn, sampled, strict=True):
        for g in made:
            ids = request.prompt_ids + g.token_ids
            with torch.no_grad():
                rows = (wide_policy.model(torch.tensor([ids])).logits[0, :-1] / 0.7).log_softmax(-1)
            full = rows.gather(1, torch.tensor(ids[1:])[:, None])[len(request.prompt_ids) - 1 :, 0]
            assert g.logprobs == pytest.approx(full.tolist(), abs=1e-4)
