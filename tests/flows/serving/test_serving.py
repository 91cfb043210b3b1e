"""The endpoint, asked by the real OpenAI client over a real socket, against what the engine says directly."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import openai
import pytest
import torch
import uvicorn
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flows.serving.app import make_app
from flows.serving.batch import Batch, PromptRequest, Sample
from flows.serving.current import Current, Limits, Served, load
from flows.serving.decoded_text import DecodedText
from flows.serving.models import Chosen
from flows.serving.server import listen
from flows.serving.worker import ServingJob, Worker
from learning.data.chat import decode, encode_prompt
from learning.data.tokenizers import characters
from learning.generation.engines.slot_attention import use_slot_attention
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy, save_policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from tests.models.families import make_family
from tests.waiting import wait_for

HELLO = [{"role": "user", "content": "hello"}]
SLOTS = 4
LENGTH = 96


@pytest.fixture(scope="module")
def served(policy):
    """The endpoint on a port of its own, its client, and its worker."""
    worker = Worker(policy, max_slots=SLOTS, max_length=LENGTH)
    current = Current(Served(Chosen("tiny", None, "ab" * 32, "a tiny model"), worker))
    opened = listen(0)
    server = uvicorn.Server(uvicorn.Config(make_app(current), log_level="critical"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([opened])))
    thread.start()
    wait_for(lambda: server.started)
    address = f"http://127.0.0.1:{opened.getsockname()[1]}/v1"
    client = openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=240)
    yield SimpleNamespace(client=client, worker=worker, address=address, policy=policy)
    client.close()
    server.should_exit = True
    thread.join(60)
    current.close()
    worker.thread.join(60)
    assert not worker.thread.is_alive()


def direct(policy, ids, n, seed, temperature, most):
    """What the engine of training and evaluation says."""
    return Engine(policy).generate([Request(list(ids), n, seed)], Sampling(temperature, most))[0]


def asked(served, **more):
    return served.client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **more})


def test_models_and_health(served):
    (model,) = served.client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == ("tiny", "posttrain", LENGTH)
    assert served.client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="the model `tina` does not exist; this server has `tiny`"):
        served.client.models.retrieve("tina")


def test_greedy_chat_is_what_the_engine_says_token_for_token(served):
    for text in ("hello", "1 + 2 =", "A longer question, with more words in it?"):
        ids = encode_prompt(served.policy.tokenizer, [{"role": "user", "content": text}])
        (wanted,) = direct(served.policy, ids, 1, 0, 0.0, 24)
        reply = asked(served, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=24, logprobs=True)
        (choice,) = reply.choices
        kept = [t for t in wanted.token_ids if t != served.policy.tokenizer.eos_token_id]
        assert [entry.token for entry in choice.logprobs.content] == [served.policy.tokenizer.decode([t]) for t in kept]
        assert choice.message.content == decode(served.policy.tokenizer, wanted.token_ids)
        assert choice.finish_reason == wanted.finish
        assert reply.usage.prompt_tokens == len(ids)
        assert reply.usage.completion_tokens == len(wanted.token_ids)
        assert reply.usage.total_tokens == len(ids) + len(wanted.token_ids)
        assert reply.system_fingerprint == f"posttrain-{'ab' * 6}"


def test_samples_of_a_seed_are_those_of_the_engine_and_come_again(served):
    ids = encode_prompt(served.policy.tokenizer, HELLO)
    wanted = direct(served.policy, ids, 6, 11, 0.9, 30)  # more samples than there are slots
    first = asked(served, n=6, seed=11, temperature=0.9, max_completion_tokens=30)
    texts = [choice.message.content for choice in sorted(first.choices, key=lambda c: c.index)]
    assert texts == [decode(served.policy.tokenizer, g.token_ids) for g in wanted]
    assert [c.finish_reason for c in first.choices] == [g.finish for g in wanted]
    assert first.usage.completion_tokens == sum(len(g.token_ids) for g in wanted)
    assert len(set(texts)) == 6
    again = asked(served, n=6, seed=11, temperature=0.9, max_completion_tokens=30)
    assert [c.message.content for c in again.choices] == texts
    other = asked(served, n=6, seed=12, temperature=0.9, max_completion_tokens=30)
    assert [c.message.content for c in other.choices] != texts
    free = {asked(served, max_tokens=30).choices[0].message.content for _ in range(4)}
    assert len(free) == 4  # without a seed: another each time


def test_the_end_token_ends_a_completion_and_is_counted_but_not_returned(served):
    ids = served.policy.tokenizer.encode("ab")
    for seed in range(200):
        (wanted,) = direct(served.policy, ids, 1, seed, 1.5, 40)
        if wanted.finish == "stop":
            break
    reply = served.client.completions.create(
        model="tiny", prompt="ab", seed=seed, temperature=1.5, max_tokens=40, logprobs=0
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "stop"
    assert choice.text == decode(served.policy.tokenizer, wanted.token_ids)
    assert reply.usage.completion_tokens == len(wanted.token_ids) == len(choice.logprobs.tokens) + 1


def test_a_streamed_answer_equals_an_unstreamed_one(served):
    settings = {"n": 2, "seed": 5, "temperature": 0.8, "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
    whole = asked(served, **settings)
    chunks = list(asked(served, **settings, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        assert entries == choice.logprobs.content
    assert len(chunks) > 20
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    plain = {"model": "tiny", "prompt": "ab", "seed": 3, "max_tokens": 12, "logprobs": 2}
    wanted = served.client.completions.create(**plain).choices[0]
    parts = [c for chunk in served.client.completions.create(**plain, stream=True) for c in chunk.choices]
    assert "".join(part.text for part in parts) == wanted.text
    offsets = [offset for part in parts if part.logprobs for offset in part.logprobs.text_offset]
    assert offsets == wanted.logprobs.text_offset


def test_stop_strings_end_a_completion_and_are_never_returned(served):
    text = asked(served, temperature=0, max_tokens=40).choices[0].message.content
    stop = text[10:13]
    at = text.index(stop)
    for stops in (stop, ["§", stop]):
        (choice,) = asked(served, temperature=0, max_tokens=40, stop=stops, logprobs=True).choices
        assert (choice.message.content, choice.finish_reason) == (text[:at], "stop")
        assert "".join(entry.token for entry in choice.logprobs.content) == text[:at]
        chunks = asked(served, temperature=0, max_tokens=40, stop=stops, stream=True)
        assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == text[:at]


def test_logprobs_are_the_models_own_whatever_the_temperature(served):
    ids = encode_prompt(served.policy.tokenizer, HELLO)
    for temperature, top_p in ((0.0, 1.0), (0.7, 1.0), (1.0, 0.6)):
        sampling = {"temperature": temperature, "top_p": top_p, "seed": 1, "max_tokens": 20}
        logprobs_of_tokens = asked(served, **sampling, logprobs=True, top_logprobs=3).choices[0].logprobs.content
        taken = served.policy.tokenizer.encode("".join(entry.token for entry in logprobs_of_tokens))
        with torch.no_grad():
            logits = served.policy.model(torch.tensor([ids + taken])).logits[0, len(ids) - 1 : -1]
        logp = logits.float().log_softmax(-1)
        own = logp.gather(1, torch.tensor(taken)[:, None])[:, 0]
        assert [entry.logprob for entry in logprobs_of_tokens] == pytest.approx(own.tolist(), abs=1e-4)
        best = [[other.logprob for other in entry.top_logprobs] for entry in logprobs_of_tokens]
        assert best == [pytest.approx(row, abs=1e-4) for row in logp.topk(3).values.tolist()]


def test_top_p_keeps_the_nucleus_and_its_proportions(served):
    ids = served.policy.tokenizer.encode("ab")
    with torch.no_grad():
        p, order = served.policy.model(torch.tensor([ids])).logits[0, -1].double().softmax(-1).sort(descending=True)
    kept = int((p.cumsum(0) < 0.5).sum()) + 1
    drawn = []
    for seed in range(10):
        made = served.client.completions.create(
            model="tiny", prompt=ids, n=128, seed=seed, top_p=0.5, max_tokens=1, logprobs=0
        )
        drawn += [choice.logprobs.tokens[0] if choice.logprobs.tokens else "<eos>" for choice in made.choices]
    words = [served.policy.tokenizer.decode([int(t)]) for t in order[:kept]]
    assert set(drawn) <= set(words)
    wanted = (p[:kept] / p[:kept].sum() * len(drawn)).numpy()
    assert chisquare([drawn.count(word) for word in words], wanted).pvalue > 0.01


def test_concurrent_requests_share_the_batch_and_stay_separate(served, monkeypatch):
    widths, step = [], Batch.step
    monkeypatch.setattr(Batch, "step", lambda batch: (widths.append(len(batch.samples)), step(batch))[1])

    def one(seed):
        message = [{"role": "user", "content": "x" * (seed + 1)}]
        return asked(served, messages=message, seed=seed, max_tokens=40 + seed).choices[0].message.content

    alone = [one(seed) for seed in range(12)]
    assert max(widths) == 1
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(one, range(12)))
    assert together == alone
    assert max(widths) == SLOTS


def test_what_is_wrong_is_refused_in_the_shape_of_openais_errors(served):
    def refused(error, code=None, param=None, **more):
        with pytest.raises(error) as raised:
            asked(served, **more)
        assert (raised.value.code, raised.value.param) == (code, param)
        assert raised.value.type == "invalid_request_error"
        return raised.value.body["message"]

    bad = openai.BadRequestError
    assert refused(openai.NotFoundError, "model_not_found", "model", model="gpt") == (
        "the model `gpt` does not exist; this server has `tiny`"
    )
    refused(bad, "unknown_parameter", "top_k", extra_body={"top_k": 3})
    refused(bad, "unsupported_parameter", "frequency_penalty", frequency_penalty=0.5)
    refused(bad, "unsupported_parameter", "response_format", response_format={"type": "json_object"})
    refused(bad, None, "temperature", temperature=3)
    refused(bad, None, "n", n=0)
    refused(bad, None, "top_logprobs", top_logprobs=2)
    refused(bad, None, "stop", stop=["a", "b", "c", "d", "e"])
    refused(bad, None, "messages", messages=[{"role": "tool", "content": "x"}])  # the template's own refusal
    assert "must have a role and a text content" in refused(
        bad, None, "messages", messages=[{"role": "user", "content": [{"type": "image_url"}]}]
    )
    output = refused(bad, "context_length_exceeded", "messages", max_tokens=LENGTH)
    assert output.startswith(
        f"the context of the model is {LENGTH} tokens; the request needs 8 for messages and {LENGTH} for"
    )
    assert asked(served, max_tokens=1, frequency_penalty=0, user="me", response_format={"type": "text"}).choices
    with pytest.raises(openai.BadRequestError, match="not among the"):
        served.client.completions.create(model="tiny", prompt=[10**6])
    raw = served.client.with_options(base_url=served.address)
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings: Not Found"):
        raw.embeddings.create(model="tiny", input="x")


def test_a_client_that_disconnects_frees_its_slots(served):
    stream = asked(served, n=SLOTS, temperature=1.0, seed=2, max_tokens=80, stream=True)
    next(iter(stream))
    stream.close()
    wait_for(lambda: not served.worker.batch.samples)
    assert asked(served, max_tokens=2).choices


def test_a_failure_of_the_engine_is_reported_and_the_next_request_is_served(served, monkeypatch):
    def broken(batch):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "step", broken)
        with pytest.raises(openai.InternalServerError, match="RuntimeError: out of memory"):
            asked(served)
        stream = asked(served, stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)
    assert asked(served, max_tokens=2).choices


def test_who_chose_a_model_just_before_it_was_changed_is_still_answered(policy):
    worker, heard = Worker(policy, max_slots=1, max_length=32), []
    worker.close()
    worker.submit(ServingJob(PromptRequest((5, 6), 3, 0, 0.0), 1, (), heard.append))
    worker.thread.join(120)
    assert heard[-1].finish in ("stop", "length")
    worker.submit(ServingJob(PromptRequest((5, 6), 3, 0, 0.0), 1, (), heard.append))
    assert "no longer served" in str(heard[-1])


def test_only_whole_characters_are_returned():
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocabulary, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, clean_up_tokenization_spaces=False)
    wanted = "naïve: 3 € 😀, done"
    ids = tokenizer.encode(wanted)
    assert len(ids) > len(wanted)
    text = DecodedText(tokenizer)
    parts = [text.add(token) for token in ids]
    assert "".join(parts) + text.finish() == wanted
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    cut = DecodedText(tokenizer)
    assert "".join([cut.add(token) for token in ids[:4]]) + cut.finish() == tokenizer.decode(ids[:4])
    stopped = DecodedText(tokenizer, ["€ 😀", "zz"])
    received = ""
    for token in ids:
        received += stopped.add(token)
        if stopped.stopped:
            break
        assert "naïve: 3 € 😀".startswith(received)
    assert received + stopped.finish() == "naïve: 3 "


def test_it_listens_on_this_machine_only(served):
    port = int(served.address.split(":")[2].split("/")[0])
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with socket.socket() as probe:
            assert probe.connect_ex((address, port)) != 0


@pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "lfm2"])
def test_windows_caps_sinks_and_states_are_served_exactly(kind):
    model = make_family(kind)
    batch, completions = Batch(model, 3, 40), {}
    prompts = [tuple(range(3, 3 + n)) for n in (17, 5, 11)]
    with torch.inference_mode(), use_slot_attention(model):
        for step in range(16):
            if step in (0, 3, 6):  # a sample joins while the ones before it are decoded
                request = PromptRequest(prompts[step // 3], max_tokens=9, seed=0, temperature=0.0)
                batch.admit(request, [Sample(request, 0, owner=None)])
            for sample, token in batch.step():
                completions.setdefault(sample.request.prompt_ids, []).append(token.id)
                sample.over = sample.count == 9
            batch.leave()
            if not batch.samples:
                break
    for prompt in prompts:
        ids = torch.tensor([prompt])
        given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0, "eos_token_id": 60}
        assert completions[prompt] == model.generate(ids, max_new_tokens=9, **given)[0, len(prompt) :].tolist()


@pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed
def test_a_model_that_slots_do_not_fit_is_refused_before_it_is_served(tmp_path):
    tokenizer = characters()
    tokenizer.model_max_length = 96
    save_policy(Policy(make_family("llama4_text", vocab_size=len(tokenizer)), tokenizer, 96), tmp_path)
    chosen = Chosen(name="chunks", folder=tmp_path, digest="", description="chunks")
    with pytest.raises(StepError, match=r"cannot serve it exactly \(llama4_text: layers of chunked_attention\)"):
        load(chosen, Limits(max_slots=2, max_length=None), "cpu", "float32")
