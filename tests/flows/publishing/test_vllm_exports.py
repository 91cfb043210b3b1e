"""vLLM loads what `posttrain export hf` writes, and answers as transformers does: one dense and one MoE family."""

import gc
from importlib.util import find_spec

import pytest
import torch

from flows.publishing.model_export import export_hf
from learning.generation.engines.vllm_host import preserve_process_state
from learning.models.policy import save_policy
from lineage.layout import Layout
from tests.learning.models.test_gguf import make_policy

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
    pytest.mark.filterwarnings("ignore"),
]
PROMPT = [7, 30, 41, 12]
SHAPES = {"qwen3": {"head_dim": 32}, "qwen3_moe": {"head_dim": 32}}


@pytest.mark.parametrize("kind", SHAPES)
def test_vllm_answers_as_transformers(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    policy = make_policy(kind, **SHAPES[kind])
    save_policy(policy, tmp_path / "model")
    export_hf(Layout(tmp_path), str(tmp_path / "model"), tmp_path / "out", "0.1MB")
    with preserve_process_state():
        made = sample_with_vllm(tmp_path / "out")
    ids = PROMPT + list(made.token_ids)
    with torch.no_grad():
        lp = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(lp[i - 1, ids[i]]) for i in range(len(PROMPT), len(ids))]
    logprobs = [step[token].logprob for step, token in zip(made.logprobs, made.token_ids, strict=True)]
    assert [int(lp[i - 1].argmax()) for i in range(len(PROMPT), len(ids))] == list(made.token_ids)
    assert max(abs(a - b) for a, b in zip(expected, logprobs, strict=True)) < 1e-4


def sample_with_vllm(folder):
    """Return eight greedy tokens after PROMPT with their log-probabilities."""
    from vllm import LLM, SamplingParams

    engine = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=64, seed=0)
    try:
        sampling = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True)
        return engine.generate({"prompt_token_ids": PROMPT}, sampling, use_tqdm=False)[0].outputs[0]
    finally:
        del engine
        gc.collect()
