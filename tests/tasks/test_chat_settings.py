"""Chat settings of a stage reach its prompts, are written with its model, and hold in the stages after it."""

from dataclasses import replace

import pytest

from learning.data.chat import encode_prompt, find_turn_ends
from learning.data.chat_settings import ChatSettings, apply_chat, read_settings
from learning.data.rows import write_rows
from learning.data.tokenizers import characters
from learning.generation.replicas.replica_worker import serve
from learning.models.policy import load_policy
from learning.samples.engine_protocol import Request
from schemas.chat import Chat
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from schemas.stages.rl import Rl
from schemas.stages.sft import Sft
from schemas.stages.synthesize import Synthesize
from schemas.use import EngineUse
from tasks import evaluate, rl, sft, synthesize
from tests.tasks.test_rl import ALGORITHM

TEMPLATE = (
    "{% if tools %}<system>{{ tools[0].function.name }}{% if loud %}!{% endif %}"
    "{{ strftime_now('%Y') }}<eos>{% endif %}"
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CHAT = {
    "chat_template": TEMPLATE,
    "chat_template_kwargs": {"loud": True},
    "system_prompt": "Be brief.",
    "tools": [TOOL],
    "chat_date": "2025-01-31",
}
WANTED = "<system>add!2025<eos><system>Be brief.<eos><user>1+1=<eos><assistant>"


def row(question, answer):
    rest = {"id": question, "answer": answer, "family": "sums", "metadata": "{}"}
    prompt = [{"role": "user", "content": question}]
    return {**rest, "prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    rows = [row("1+1=", "2"), row("2+1=", "3")]
    for name, kind in (("chat", "chat"), ("prompts", "prompts")):
        (tmp_path / name).mkdir()
        write_rows(
            tmp_path / name, kind, [{k: v for k, v in r.items() if kind == "chat" or k != "completion"} for r in rows]
        )
    return {"model": tiny_policy_folder, "data": tmp_path / "chat", "prompts": tmp_path / "prompts"}


@pytest.fixture
def rendered(monkeypatch):
    """Return the prompts that engines receive, as text."""
    texts = []
    init = Request.__init__

    def note(self, prompt_ids, *rest, **more):
        texts.append(characters().decode(prompt_ids).replace(" ", ""))
        init(self, prompt_ids, *rest, **more)

    monkeypatch.setattr(Request, "__init__", note)
    return texts


SFT = {"kind": "sft", "model": "m", "data": "d", "max_steps": 1, "per_device_train_batch_size": 2}


def test_settings_are_trained_on_and_carried_to_the_stages_after(at, inputs, rendered):
    first = replace(at("a"), inputs=inputs)
    sft.run(Sft.model_validate(SFT | CHAT), first)
    trained = first.folder / "outputs" / "model"
    tokenizer = load_policy(trained).tokenizer
    assert tokenizer.decode(encode_prompt(tokenizer, row("1+1=", "2")["prompt"])).replace(" ", "") == WANTED.replace(
        " ", ""
    )
    later = {**inputs, "model": trained}
    stage = Synthesize.model_validate(
        {
            "kind": "synthesize",
            "prompts": "p",
            "model": "m",
            "num_generations": 1,
            "max_completion_length": 4,
            "min_reward": -1,
        }
    )
    with pytest.raises(StepError, match="none of 2 samples was accepted"):
        synthesize.run(stage, replace(at("b"), inputs=later))
    assert rendered[0] == WANTED.replace(" ", "")
    rendered.clear()
    stage = Evaluate.model_validate(
        {"kind": "evaluate", "model": "m", "prompts": "p", "max_completion_length": 4, "system_prompt": "", "tools": []}
    )
    evaluate.run(stage, replace(at("c"), inputs=later))
    assert rendered[0] == "<user>1+1=<eos><assistant>"


def test_rl_samples_with_its_settings_and_writes_them(at, inputs, rendered):
    stage = Rl.model_validate(
        {
            "kind": "rl",
            "model": "m",
            "prompts": "p",
            "rewards": ["answers.exact"],
            **ALGORITHM,
            "generation_batch_size": 2,
            "num_generations": 2,
            "max_steps": 1,
            "max_completion_length": 4,
            "system_prompt": "Be brief.",
        }
    )
    context = replace(at("a"), inputs=inputs)
    rl.run(stage, context)
    assert rendered[0].startswith("<system>Bebrief.<eos><user>")
    assert read_settings(load_policy(context.folder / "outputs" / "model").tokenizer).system_prompt == "Be brief."


def test_settings_are_set_one_by_one_and_unset_by_empty_values():
    tokenizer = characters()
    apply_chat(tokenizer, Chat.model_validate(CHAT))
    apply_chat(tokenizer, Chat(chat_template_kwargs={"loud": False}))
    settings = read_settings(tokenizer)
    assert (settings.template_kwargs, settings.system_prompt) == ({"loud": False}, "Be brief.")
    apply_chat(tokenizer, Chat(chat_template_kwargs={}, system_prompt="", tools=[], chat_date="2024-07-26"))
    assert read_settings(tokenizer) == ChatSettings()
    assert tokenizer.chat_template == TEMPLATE


def test_another_template_ends_turns_otherwise():
    tokenizer = characters()
    before = find_turn_ends(tokenizer)
    apply_chat(tokenizer, Chat(chat_template="{% for m in messages %}{{ m['content'] }}<system>{% endfor %}"))
    assert find_turn_ends(tokenizer) == (tokenizer.convert_tokens_to_ids("<system>"), *before)


def test_workers_of_their_own_end_turns_by_the_settings_of_the_stage(tiny_policy_folder):
    chat = Chat(chat_template="{% for m in messages %}{{ m['content'] }}<system>{% endfor %}")
    plain, changed = (serve(EngineUse(use="torch"), str(tiny_policy_folder), "float32", None, c) for c in (None, chat))
    try:
        eos, system = characters().convert_tokens_to_ids(["<eos>", "<system>"])
        assert plain.policy.stop_ids == (eos,)
        assert changed.policy.stop_ids == (system, eos)
    finally:
        for service in (plain, changed):
            service.close()
