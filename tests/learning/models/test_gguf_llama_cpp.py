"""llama.cpp itself reads exported GGUF files: distributions and tokens are those of transformers.

Runs where the package xllamacpp, which holds a build of llama.cpp, is installed: pip install --no-deps xllamacpp.
"""

import pytest
import torch

from tests.learning.models.test_gguf import OWN, exported, make_policy

llama_cpp = pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install --no-deps xllamacpp")

PROMPT = "the cat sat on 12 mats"
STEPS = 12


def serve(file, ctx):
    """A server of llama.cpp on 127.0.0.1, with keys and values in float32."""
    params = llama_cpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(file), ctx, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return llama_cpp.Server(params)


def next_distribution(server, prompt, size):
    """Greedy token after a prompt (ids or text) and log-probabilities by id; None while a character is incomplete."""
    asked = {"prompt": prompt, "n_predict": 1, "temperature": 0.0, "n_probs": size, "cache_prompt": False}
    logprobs = server.handle_completions({**asked, "ignore_eos": False})["choices"][0]["logprobs"]
    if not logprobs or not logprobs["content"]:
        return None
    (entry,) = logprobs["content"]
    return entry["id"], {each["id"]: each["logprob"] for each in entry["top_logprobs"]}


@pytest.mark.parametrize("kind", OWN)
def test_llama_cpp_has_the_distributions_of_transformers(kind, tmp_path):
    policy = make_policy(kind)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(4 if parameter.ndim >= 2 else 1)
    folder, _ = exported(tmp_path, policy)
    server = serve(folder / "m.gguf", 128)
    ids, compared = policy.tokenizer.encode(PROMPT), 0
    for step in range(STEPS):
        with torch.no_grad():
            logp_V = policy.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        distribution = next_distribution(server, ids, len(logp_V))
        if distribution is not None:
            token, logprobs = distribution
            assert token == int(logp_V.argmax())
            assert max(abs(logprob - float(logp_V[each])) for each, logprob in logprobs.items()) < 1e-4
            compared += len(logprobs)
            if step == 0:  # llama.cpp's own tokenizer gives the same ids
                assert next_distribution(server, PROMPT, len(logp_V))[1] == pytest.approx(logprobs, abs=1e-6)
        ids.append(int(logp_V.argmax()))
    assert compared > STEPS / 2 * 300
