"""Traps between the engine, the tokenizer and the trainer."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion, encode_prompt
from learning.data.tokenizers import CHAT_TEMPLATE, characters
from learning.generation.engines.torch import Engine
from learning.models.packed import pack, packed_logprobs
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Request, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler

ADVERSARIAL = ["", " ", "a<eos>b", "<assistant>", "  two  spaces ", "ends with <eos>", "<user><eos><assistant>", "\n\n"]


def merging():
    """A tokenizer that would write `a`, `b` as the one token `ab` if it were asked again."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<user>", "<assistant>", "a", "b", "ab"])}
    plain = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "additional_special_tokens": ["<user>", "<assistant>"]}
    made = PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=CHAT_TEMPLATE, **special)
    made.model_max_length = 64
    return made


class Scripted:
    """An engine that always samples `a`, `b` as two tokens."""

    def generate(self, requests, sampling):
        return [[Generation([4, 5, 1], [-1.0, -2.0, -3.0], "stop") for _ in range(r.n)] for r in requests]


def test_trap_15_tokens_are_never_made_again(tiny_policy):
    tokenizer = merging()
    assert tokenizer.encode("ab", add_special_tokens=False) == [6]
    policy = Policy(tiny_policy.model, tokenizer, 64)
    sampler = Sampler(Scripted(), policy, Sampling(1.0, 8), seed=0, step=0)
    samples = sampler.sample([SampleRequest({"id": "q", "prompt": [{"role": "user", "content": "ab"}]}, n=2)])
    assert [t.text for t in samples] == ["ab", "ab"]
    assert [t.completion_ids for t in samples] == [[4, 5, 1]] * 2
    batch = forest(samples)
    path = [token for segment in (0, batch.leaves[1]) for token in batch.segments[segment]]
    assert path == [*samples[1].prompt_ids, 4, 5, 1]
    assert batch.sampled("lp_behav").tolist() == [-1.0, -2.0, -3.0] * 2


@pytest.mark.parametrize("text", ADVERSARIAL)
def test_trap_15_a_prompt_and_its_completion_are_the_whole_conversation(text):
    tokenizer = characters()
    prompt = [{"role": "user", "content": "q"}]
    ids = encode_prompt(tokenizer, prompt) + encode_completion(tokenizer, [{"role": "assistant", "content": text}])
    whole = tokenizer.apply_chat_template([*prompt, {"role": "assistant", "content": text}], tokenize=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == whole
    assert ids.count(tokenizer.eos_token_id) == 2  # of the question and of the answer, whatever the text looks like
    assert decode(tokenizer, ids) == "q" + text


def agreement(engine, policy):
    """Largest gap between what the engine says of its samples and what the trainer says."""
    request = Request([5, 6, 7, 8, 9], 3, seed=4)
    (generations,) = engine.generate([request], Sampling(1.0, 6))
    gaps = []
    for g in generations:
        with torch.no_grad():
            lp, _ = packed_logprobs(policy.model, pack([request.prompt_ids, g.token_ids], [-1, 0]))
        gaps.append(float((lp[5:] - torch.tensor(g.logprobs)).abs().max()))
    return generations, max(gaps)


def test_trap_22_every_tensor_that_is_trained_reaches_the_engine(tiny_policy):
    engine = Engine(tiny_policy)
    before, gap = agreement(engine, tiny_policy)
    assert gap < 1e-5
    generator = torch.Generator().manual_seed(0)
    for version, (name, parameter) in enumerate(tiny_policy.model.named_parameters(), start=1):
        old = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.abs().mean())
        engine.sync(version)
        after, gap = agreement(engine, tiny_policy)
        assert gap < 1e-5, name
        assert [g.logprobs for g in after] != [g.logprobs for g in before], name
        assert engine.version == version
        with torch.no_grad():
            parameter.copy_(old)
    engine.sync(0)
    assert agreement(engine, tiny_policy)[0] == before


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft asks transformers for it
def test_trap_22_an_adapter_reaches_the_engine(tiny_policy):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(tiny_policy.model, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear"))
    policy = Policy(adapted, tiny_policy.tokenizer, tiny_policy.max_length)
    engine = Engine(policy)
    before, gap = agreement(engine, policy)
    assert gap < 1e-5
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3)
    engine.sync(1)
    after, gap = agreement(engine, policy)
    assert gap < 1e-5
    assert [g.logprobs for g in after] != [g.logprobs for g in before]
