"""A model with Gemma's template learns to stop at its own end of turn, which is not its end-of-sequence token."""

import pytest

from learning.data.chat import decode, encode_prompt
from learning.data.rows import write_rows
from learning.data.tokenizers import characters
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy, load_policy, save_policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.stages.sft import Sft
from tasks.sft import run
from tests.conftest import small_policy
from tests.learning.data.template_families import FAMILIES

WORDS = {"one": "1.", "two": "2!", "three": "3, three"}

ASKED = {word: [{"role": "user", "content": word}] for word in WORDS}


@pytest.fixture
def inputs(tmp_path):
    tokenizer = characters(chat_template=FAMILIES["gemma"].template.replace("«", "").replace("»", "{{ '' }}"))
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"], "bos_token": "<bos>"}
    )
    tokenizer.model_max_length = 128
    model = small_policy(128, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8).model
    model.resize_token_embeddings(len(tokenizer))
    save_policy(Policy(model, tokenizer, 128), tmp_path / "gemma")
    data = tmp_path / "data"
    data.mkdir()
    rest = {"answer": "", "family": "words", "metadata": "{}"}
    replies = {word: [{"role": "assistant", "content": text}] for word, text in WORDS.items()}
    write_rows(data, "chat", [{"id": w, "prompt": ASKED[w], "completion": replies[w], **rest} for w in WORDS])
    return {"model": tmp_path / "gemma", "data": data}


def test_a_gemma_shaped_model_stops_at_its_own_end_of_turn(at):
    stage = {"kind": "sft", "model": "m", "data": "d", "max_steps": 60, "learning_rate": 1e-2, "save_steps": 1000}
    context = at("a")
    run(Sft.model_validate(stage), context)
    policy = load_policy(context.folder / "outputs" / "model")
    end = policy.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert policy.tokenizer.eos_token_id != end
    assert policy.tokenizer.eos_token_id in policy.stop_ids
    requests = [Request(encode_prompt(policy.tokenizer, messages), 1, 0) for messages in ASKED.values()]
    made = [group[0] for group in Engine(policy).generate(requests, Sampling(0.0, 30))]
    assert [decode(policy.tokenizer, one.token_ids) for one in made] == list(WORDS.values())
    assert [(one.token_ids[-1], one.finish) for one in made] == [(end, "stop")] * len(WORDS)
    assert all(one.token_ids.count(end) == 1 for one in made)
