"""ONI: labels of captions that arrive while a policy is trained, as a table, a classifier or a ranking.

Not shown: NetHack, how fast a language model answers.
"""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from learning.control import training
from learning.control.rewards.online_labels import OnlineLabels, Request
from learning.control.worlds.key_doors import key_door, key_door_events, shown_text
from learning.lookup import bind
from learning.rewards import judges
from schemas.control import RelabelUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import control
from tasks.context import Context
from tests.bpe_checkpoint import write_bpe_checkpoint
from tests.waiting import wait_for

PATH = Path(__file__).parents[2] / "recipes/papers/oni.yaml"
STAGES = load_recipe(PATH).stages
ARMS = ("hash", "classify", "rank")
HERE = "tests.papers.test_paper_oni"
STALL = threading.Event()
ASKED = []


def read(next_observation_NO):
    """A caption for a world of one number: its name, nothing for 0."""
    return ["" if n == 0 else f"event {int(n)}" for n in next_observation_NO[:, 0]]


def label_odd(rows, completions):
    """Labels 1 for odd numbers, once it does not stall, and keeps what it was asked."""
    ASKED.append((rows[0]["prompt"][0]["content"], list(completions)))
    STALL.wait(10)
    return [float(text.split()[-1]) % 2 for text in completions]


def label_nothing(completions):
    """Can label no caption."""
    return [None for _ in completions]


def label_much(completions):
    """Gives scores out of range."""
    return [2.0 for _ in completions]


def fail(completions):
    """Never answers."""
    raise StepError("the server is away")


def pay(completions, account):
    """Labels 1, and keeps who pays."""
    ASKED.append(account.step)
    return [1.0 for _ in completions]


@pytest.fixture(autouse=True)
def ready():
    ASKED.clear()
    STALL.set()


class Asked:
    """The recipe's `relabel` in two worlds, step by step."""

    def __init__(self, arm="hash", *, annotator=f"{HERE}:label_odd", **options):
        use = STAGES[arm].relabel.model_dump()
        use |= {"caption": f"{HERE}:read", "annotator": annotator, "latency": 0, **options}
        self.bound, self.states = bind(RelabelUse.model_validate(use), "relabel"), {}

    def step(self, *numbers, reward=0.0):
        shown = np.array(numbers, float)[:, None]
        supplies = {"next_observation_NO": shown, "reward_N": np.full(len(numbers), reward), "states": self.states}
        return self.bound.ask(0, supplies)["reward"].tolist()

    @property
    def labels(self):
        return self.states["relabel"]["labels"]


def test_a_caption_with_label_1_and_a_reward_of_1_pay_a_half():
    """.1 · 1 + .4 · 1; 0 for the label 0; a reward of 1 without a caption pays .1."""
    asked = Asked()
    assert asked.step(3, 2) == [0.0, 0.0]
    assert asked.step(3, 2, reward=1.0) == pytest.approx([0.5, 0.1])
    assert asked.step(3, 0) == pytest.approx([0.4, 0.0])
    assert asked.step(0, 0, reward=1.0) == pytest.approx([0.1, 0.1])


def test_a_caption_without_a_label_pays_nothing_by_the_table_and_what_the_classifier_says():
    """It has seen that `event 1`, `event 3` are 1 and `event 2` is 0: `event` is in all, 9 is new."""
    for arm in ("hash", "classify"):
        asked = Asked(arm, latency=1)
        asked.step(1, 2)
        asked.step(3, 5)
        asked.step(0, 0)
        asked.step(0, 0)
        assert asked.labels.scores == {"event 1": 1, "event 2": 0, "event 3": 1, "event 5": 1}
        new, known = asked.step(9, 3)
        if arm == "hash":
            assert (new, known) == (0.0, pytest.approx(0.4))
        else:
            chance = 1 / (1 + np.exp(-asked.labels.weight_F @ describe("event 9")))
            assert new == pytest.approx(0.4 * chance)
            assert 0.2 < new < known < 0.4
            assert asked.step(2, 2) == [0.0, 0.0]


def describe(caption):
    """Features: 1 and the words."""
    from learning.control.rewards.online_labels import describe_captions

    return describe_captions([caption])[0]


def test_the_classifier_is_a_logistic_regression_on_words():
    labels = OnlineLabels("classify")
    labels.learn(Request(["a red key", "a blue key", "a red wall"], 0, [1.0, 0.9, 0.2]))
    rows = np.stack([describe(text) for text in labels.scores])
    weight = np.zeros(rows.shape[1])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-rows @ weight))
        weight += 0.5 * rows.T @ (np.array([1, 1, 0]) - chance) / 3
    assert labels.weight_F == pytest.approx(weight)
    assert labels.reward(["a key", "a wall", ""])[0] > 0.5
    assert labels.reward(["a key", "a wall", ""])[1:].tolist() == [0, 0]


def test_the_ranking_orders_captions_as_their_scores_do():
    labels = OnlineLabels("rank")
    assert labels.reward(["a"]).tolist() == [0]
    labels.learn(Request(["a", "b", "c"], 0, [0.1, 0.9, 0.5]))
    paid = labels.reward(["a", "c", "b", ""])
    assert paid[2] > 0
    assert paid[[0, 1, 3]].tolist() == [0, 0, 0]
    score_K = np.array([describe(text) @ labels.weight_F for text in "abc"])
    assert score_K[1] > score_K[2] > score_K[0]
    assert paid[2] == pytest.approx((score_K[1] - np.median(score_K)) / score_K.std())
    tie = OnlineLabels("rank")
    tie.learn(Request(["a", "b"], 0, [0.5, 0.5]))
    assert not tie.weight_F.any()


def test_a_stalled_annotator_does_not_stop_stepping_and_its_reply_pays_the_next_visit():
    STALL.clear()
    asked = Asked(latency="none")
    for _ in range(20):
        assert asked.step(3, 5, reward=1.0) == pytest.approx([0.1, 0.1])
    wait_for(lambda: ASKED)
    assert len(ASKED) == 1
    STALL.set()
    wait_for(lambda: asked.labels.pending.scores is not None)
    assert asked.step(3, 5, reward=1.0) == pytest.approx([0.5, 0.5])
    assert asked.labels.scores == {"event 3": 1, "event 5": 1}


def test_each_caption_is_asked_for_once_the_newest_first_with_the_goal():
    """One batch is under way at a time; of four captions that come meanwhile the newest two are the next."""
    asked = Asked(latency=2, batch_size=2)
    for numbers in ((1, 1), (2, 3), (4, 5), (1, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)):
        asked.step(*numbers)
    goal = STAGES["hash"].relabel.options["goal"]
    assert [(goal, texts) for texts in (["event 1"], ["event 4", "event 5"], ["event 2", "event 3"])] == ASKED


@pytest.mark.parametrize("latency", [1, 3])
def test_with_a_latency_a_label_counts_after_that_many_steps(latency):
    asked = Asked(latency=latency)
    paid = [asked.step(3, 0)[0] for _ in range(6)]
    assert paid == pytest.approx([0.0] * latency + [0.4] * (6 - latency))
    assert STAGES["hash"].relabel.options["latency"] == 64


@pytest.mark.parametrize("arm", ARMS)
def test_what_was_saved_goes_on_alike_also_with_a_request_under_way(arm):
    numbers = [(1, 2), (3, 4), (9, 0), (5, 2), (6, 7), (1, 6), (3, 9), (8, 2)]
    whole = Asked(arm, latency=2)
    paid = [whole.step(*pair) for pair in numbers]
    first, second = Asked(arm, latency=2), Asked(arm, latency=2)
    before = [first.step(*pair) for pair in numbers[:4]]
    assert first.labels.pending is not None
    second.states = {"relabel": {"labels": json.loads(json.dumps(first.labels.save()))}}
    assert before + [second.step(*pair) for pair in numbers[4:]] == paid
    assert any(any(pair) for pair in paid)


def test_a_request_under_way_is_asked_again_after_a_restart():
    STALL.clear()
    first = Asked(latency="none")
    first.step(3, 5)
    second = Asked(latency="none")
    second.states = {"relabel": {"labels": first.labels.save()}}
    STALL.set()
    second.step(0, 0)
    wait_for(lambda: second.labels.pending is None or second.labels.pending.scores is not None)
    assert second.step(3, 5) == pytest.approx([0.4, 0.4])


def test_a_caption_that_cannot_be_labelled_is_left_out_and_wrong_replies_are_errors():
    asked = Asked(annotator=f"{HERE}:label_nothing")
    asked.step(3, 5)
    assert asked.step(3, 5) == [0.0, 0.0]
    assert asked.labels.scores == {}
    for name, message in (("label_much", "from 0 to 1, and one is 2.0"), ("fail", "the server is away")):
        asked = Asked(annotator=f"{HERE}:{name}")
        asked.step(3, 5)
        with pytest.raises(StepError, match=message):
            asked.step(3, 5)


def test_a_key_opens_the_door_and_words_say_so():
    world = bind(STAGES["hash"].env, "env")()
    caption = bind(RelabelUse.model_validate(STAGES["hash"].relabel.model_dump()), "relabel").options["caption"]
    assert caption.function is key_door_events
    shown, _ = world.reset(seed=0)
    said, earned = [], []
    world.cell = (3, 2)
    shown = world.observe()
    way = [3, 1, 1, 1, 2, 2, 0, 0, 0, 3, 3, 3, 3, 0, 0, 0, 3, 3]
    for action in way:
        after, reward, ended, cut, _ = world.step(action)
        said += key_door_events(shown[None], after[None])
        earned.append(reward)
        shown = after
    events = [text for text in said if text]
    assert events == [
        "You bump into something.",
        "You pick up a key.",
        "You unlock the door.",
        "You find the treasure.",
    ]
    assert (sum(earned), earned[-1], ended, cut) == (1.0, 1.0, True, False)
    assert shown[:4].tolist() == [0, 1, 1, 1]
    assert shown[4:].argmax() == 6
    short = key_door(limit=2)
    short.reset(seed=1)
    assert [short.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    text = np.frombuffer(b'{"a": 1}\0\0', np.uint8).astype(np.float32)
    assert shown_text(np.stack([text, 0 * text])) == ['{"a": 1}', ""]


def train(folder, monkeypatch, name="hash", relabel=None, inputs=None, **changes):
    """Train a stage of the recipe shortly; return what it remembers, and the step."""
    seen = []

    class Watched(training.ControlLoop):
        def __post_init__(self):
            super().__post_init__()
            seen.append(self)

    monkeypatch.setattr(control, "ControlLoop", Watched)
    short = {"environment_steps": 128, "rollout_steps": 8, "num_iterations": 1, "learning_starts": 1, **changes}
    use = RelabelUse.model_validate(STAGES[name].relabel.model_dump() | (relabel or {}))
    stage = STAGES[name].model_copy(update={**short, "relabel": use})
    context = Context(inputs or {}, folder / "step", folder / "checkpoints", seed=1)
    context.folder.mkdir(parents=True, exist_ok=True)
    control.run(stage, context)
    (loop,) = seen
    return loop, context


def test_a_training_that_was_stopped_ends_with_the_same_policy_and_labels(tmp_path, monkeypatch):
    whole, context = train(tmp_path / "whole", monkeypatch, relabel={"latency": 3}, save_steps=64)
    assert set(whole.states["relabel"]["labels"].scores) <= {"You bump into something.", "You pick up a key."}
    (tmp_path / "half").mkdir()
    (tmp_path / "whole/checkpoints").rename(tmp_path / "half/checkpoints")
    half, again = train(tmp_path / "half", monkeypatch, relabel={"latency": 3}, save_steps=64)
    assert half.window.values.keys() == whole.window.values.keys()
    assert half.states["relabel"]["labels"].save() == whole.states["relabel"]["labels"].save()
    files = [one.output("model") / "actor.safetensors" for one in (context, again)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_language_model_of_another_stage_is_the_annotator(tmp_path, monkeypatch):
    """Its probability of `yes` against `no` is the label, as the judge itself gives it."""
    write_bpe_checkpoint(tmp_path, [("You pick up a key. Good?", "yes"), ("You bump into something. Good?", "no")])
    words = {"yes": 1.0, "no": 0.0}
    template = "{prompt} {completion} Good?"
    judge = {"use": "judges.model", "judge": f"path:{tmp_path}/model", "words": words, "template": template}
    judge |= {"low": 0.0, "high": 1.0}
    inputs = {"relabel.annotator.judge": tmp_path / "model"}
    loop, _ = train(tmp_path, monkeypatch, relabel={"annotator": judge, "latency": 2}, inputs=inputs)
    scores = loop.states["relabel"]["labels"].scores
    row = {"prompt": [{"role": "user", "content": STAGES["hash"].relabel.options["goal"]}], "answer": None}
    rng = np.random.default_rng(0)
    options = {"words": words, "template": template, "low": 0.0, "high": 1.0}
    direct = judges.model([row] * len(scores), list(scores), rng, judge=tmp_path / "model", **options)
    assert "You bump into something." in scores
    assert list(scores.values()) == pytest.approx(direct)
    assert all(0 < score < 1 for score in scores.values())


def test_servers_are_paid_from_the_account_of_the_step(tmp_path, monkeypatch):
    _, context = train(tmp_path, monkeypatch, relabel={"annotator": f"{HERE}:pay", "latency": 0})
    assert ASKED
    assert set(ASKED) == {context.key}


def test_the_arms_differ_in_the_reward_model_alone():
    arms = [STAGES[name].model_dump() for name in ARMS]
    assert [arm["relabel"].pop("reward_model") for arm in arms] == list(ARMS)
    assert arms[0] == arms[1] == arms[2]
    alone = STAGES["external"].model_dump()
    assert alone.pop("relabel") is None
    assert {name: value for name, value in arms[0].items() if name != "relabel"} == alone
    assert alone["loss"]["use"] == "ppo"
    report = STAGES["report"]
    assert dict(report.models) == {name: name for name in ("external", *ARMS)}
    assert report.env == STAGES["hash"].env
    bound = bind(STAGES["hash"].relabel, "relabel").options["annotator"]
    said = ["You pick up a key.", "You unlock the door.", "You find the treasure.", "You bump into something."]
    assert bound.ask(0, {"rows": [{}] * 4, "completions": said}) == [1, 1, 1, 0]
