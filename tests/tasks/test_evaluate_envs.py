"""Models of one table in environments, and under context policies, of their own."""

import json

import pytest
from pydantic import ValidationError

from learning.data.chat import encode_completion
from learning.data.rows import write_rows
from learning.environments.protocol import Outcome
from learning.samples.engine_protocol import Generation
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.references import AnyRef
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import run

PROMPTS: list[str] = []
"""Every context in which a turn was written, as text."""
ROWS = [
    {"id": f"n{hidden}", "family": "f", "prompt": [{"role": "user", "content": "?"}], "answer": str(hidden)}
    for hidden in (5, 7)
]
EVALUATION = {
    "kind": "evaluate",
    "prompts": "p",
    "rewards": ["environment.earned"],
    "engine": f"{__name__}:Five",
    "num_bootstrap": 100,
}
GUESS = {"use": "guess", "max_turns": 3}
MEMORY = {**GUESS, "context": {"use": "memory", "ask": "{question}{memory}{observation}", "text": "{question}{memory}"}}


class Five:
    """Writes `5` at every turn."""

    def __init__(self, policy):
        self.tokenizer = policy.tokenizer

    def generate(self, requests, sampling):
        return [[self.one(request) for _ in range(request.n)] for request in requests]

    def one(self, request):
        PROMPTS.append(self.tokenizer.decode([*request.prompt_ids, *request.begun]))
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": "5"}])
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        raise AssertionError("no weight changes")


class Filed:
    """Answers with the text of a file, and ends."""

    def __init__(self, *, folder: AnyRef):
        self.text = (folder / "text").read_text()

    def begin(self, row, seed):
        return self

    def step(self, action):
        return Outcome(done=True, reward=float(self.text))


@pytest.fixture
def evaluated(tiny_policy_folder, tmp_path):
    """Evaluates models, by name, with more keys; returns the result and the contexts of each."""
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", ROWS)

    def evaluate(names, inputs=(), **more):
        made = Evaluate.model_validate(EVALUATION | {"models": dict.fromkeys(names, "m")} | more)
        folder = tmp_path / "-".join(names)
        (folder / "checkpoints").mkdir(parents=True)
        ports = {f"models.{name}": tiny_policy_folder for name in names} | dict(inputs)
        PROMPTS.clear()
        ports["prompts"] = tmp_path / "prompts"
        return run(made, Context(ports, folder, folder / "checkpoints", seed=5)), list(PROMPTS)

    return evaluate


def test_each_model_plays_in_its_own_environment_under_its_own_context_policy(evaluated):
    result, contexts = evaluated(
        ["history", "memory", "plain"], envs={"history": GUESS, "memory": MEMORY}, max_completion_length=48
    )
    turns = {name: result.metrics[f"turns.{name}"] for name in ("history", "memory", "plain")}
    # The first problem ends with the first turn. A memory is a turn too; the third action ends the second problem.
    assert turns == {"history": 2.0, "memory": 3.0, "plain": 0.0}
    seen = {"history": contexts[:4], "memory": contexts[4:10], "plain": contexts[10:]}
    assert [text.count("higher") for text in seen["history"]] == [0, 0, 1, 2]
    assert [text.count("higher") for text in seen["memory"]] == [0, 0, 1, 0, 1, 0]
    assert len(seen["plain"]) == 2


def test_other_models_play_in_the_environment_of_all(evaluated):
    both, contexts = evaluated(["history", "memory"], env=GUESS, envs={"memory": MEMORY}, max_completion_length=48)
    each, others = evaluated(["memory", "history"], envs={"history": GUESS, "memory": MEMORY}, max_completion_length=48)
    assert contexts == others[6:] + others[:6]
    shared = {name: value for name, value in both.metrics.items() if name.endswith((".history", ".memory"))}
    assert shared == {name: each.metrics[name] for name in shared}


def test_the_environment_of_a_model_has_inputs_of_its_own(evaluated, tmp_path):
    folders = {name: tmp_path / f"of-{name}" for name in ("one", "two")}
    for number, folder in enumerate(folders.values()):
        folder.mkdir()
        (folder / "text").write_text(str(number))
    envs = {name: {"use": f"{__name__}:Filed", "folder": f"path:{folder}"} for name, folder in folders.items()}
    inputs = {f"envs.{name}.folder": folder for name, folder in folders.items()}
    result, _ = evaluated(["one", "two"], inputs, envs=envs)
    assert (result.metrics["accuracy.one"], result.metrics["accuracy.two"]) == (0.0, 1.0)
    recipe = tmp_path / "r.yaml"
    asked = {"kind": "synthesize", "emit": "prompts", "problems": [{"use": "customs", "split": "test", "size": 2}]}
    report = {"kind": "evaluate", "models": {"one": "base", "two": "base"}, "prompts": "asked", "envs": envs}
    recipe.write_text(json.dumps({"stages": {"base": {"kind": "init"}, "asked": asked, "report": report}}))
    assert set(inputs) <= {port.path for port in load_recipe(recipe).ports("report")}


def test_an_environment_of_a_model_is_for_one_of_the_models_and_no_agent():
    for more, message in (
        ({"envs": {"x": GUESS}}, r"`envs`: no model is called `x`; models: a"),
        ({"envs": {"a": GUESS}, "agents": {"a": "k"}}, r"`a` is in `envs` and in `agents`"),
        ({"envs": {"a": GUESS}, "agent": "k"}, r"give either `agent`, .* or `envs`"),
        ({"envs": {"a": GUESS}, "tasks": [{"use": "lm_eval", "tasks": ["arc_easy"]}]}, r"`env` does not apply"),
    ):
        with pytest.raises(ValidationError, match=message):
            Evaluate.model_validate(EVALUATION | {"models": {"a": "m"}} | more)


def test_an_error_names_the_environment_of_the_model(evaluated, monkeypatch):
    monkeypatch.setattr(Five, "continues", False, raising=False)
    with pytest.raises(StepError, match=r"envs\.one: the engine's server cannot continue"):
        evaluated(["one"], envs={"one": GUESS})
