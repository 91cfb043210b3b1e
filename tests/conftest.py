"""Fixtures shared by all tests: a model small enough to be made on the spot."""

import os

os.environ.update(
    CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    DO_NOT_TRACK="1",
    MLFLOW_DISABLE_TELEMETRY="true",
)

from functools import cache

import pytest

from flows.planning import facts_cache


def _refuse_to_exit(code: int) -> None:
    """End a forked process; in that of the tests, an exit would pass over all other tests, with the given code."""
    if os.getpid() == TESTS:
        raise AssertionError(f"os._exit({code}) in the process of the tests")
    _exit(code)


_exit, TESTS = os._exit, os.getpid()


def pytest_sessionstart():
    """Refuse to exit while tests run; what started them may."""
    os._exit = _refuse_to_exit


def pytest_sessionfinish():
    """Let what started the tests exit again."""
    os._exit = _exit


# To parse our own sources takes a second, and hundreds of tests plan in an empty state folder.
facts_cache.read_facts = cache(facts_cache.read_facts)


def small_policy(max_length, **shape):
    """Two layers, characters as tokens, seeded."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from learning.data.tokenizers import characters
    from learning.models.policy import Policy, set_determinism

    set_determinism(0, 1)
    tokenizer = characters()
    tokenizer.model_max_length = max_length
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **shape,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4)  # sharper than the usual initialisation, so that comparisons of models mean something
    return Policy(model, tokenizer, max_length)


@pytest.fixture
def tiny_policy():
    """About 20,000 parameters; made anew for every test."""
    return small_policy(128, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8)


@pytest.fixture
def wide_policy():
    """Heads of 32 numbers, which vLLM's attention on a CPU needs, and room for 512 tokens; made anew for every test."""
    return small_policy(512, hidden_size=64, intermediate_size=96, num_attention_heads=2, head_dim=32)


@pytest.fixture
def tiny_policy_folder(tiny_policy, tmp_path):
    """The tiny policy as a model folder."""
    from learning.models.policy import save_policy

    save_policy(tiny_policy, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture
def answering(tiny_policy):
    """Makes samplers whose completions a function writes, given the text of the prompt and the number of the sample."""
    from learning.data.chat import decode, encode_completion
    from learning.samples.engine_protocol import Generation, Sampling
    from learning.sampling.sampler import Sampler

    tokenizer = tiny_policy.tokenizer

    class Engine:
        def __init__(self, write, logprob):
            self.write, self.logprob, self.requests = write, logprob, []

        def generate(self, requests, sampling):
            self.requests += requests
            return [[self.one(decode(tokenizer, r.prompt_ids), r.first + i) for i in range(r.n)] for r in requests]

        @property
        def prompts(self):
            return [decode(tokenizer, r.prompt_ids) for r in self.requests]

        def one(self, prompt, number):
            text = self.write(prompt, number)
            ids = encode_completion(tokenizer, [{"role": "assistant", "content": text}])
            return Generation(ids, [self.logprob] * len(ids), "stop")

        def sync(self, version):
            pass

    def make(write, *, step=0, logprob=-1.0, max_new_tokens=16):
        engine = Engine(write, logprob)
        return Sampler(engine, tiny_policy, Sampling(1.0, max_new_tokens), seed=0, step=step)

    return make
