"""Hindsight regenerations: a turn is rewritten after the end, models say the rest, and ILQL learns it.

Dialogues, problems, settings and losses are those of the recipe; scripts speak for the trained models. Not shown:
studies with people, and what a language model sees in hindsight.
"""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.data.chat import encode_prompt
from learning.data.rows import read_metadata, read_rows, write_rows
from learning.lookup import bind
from learning.samples.engine_protocol import Sampling
from learning.sampling import hindsight
from learning.toy_tasks.environments.persuasion import Talk
from learning.toy_tasks.persuasion import APPEALS, ASK, BEG, BYE, THANKS, YES, find_kind, hindsight_controller
from schemas.recipe.load import load_recipe
from schemas.use import ProblemsUse
from tests.papers.tabular_values import Table

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "hindsight-regenerations.yaml")
STAGES = LOADED.stages
VALUES, ORIGINAL, REPORT, REGENERATED = (STAGES[name] for name in ("values", "original", "report", "regenerated"))


def complete(rows):
    """Rows of chat: problems with what the teacher `answer` writes."""
    return [row | {"completion": [{"role": "assistant", "content": row["answer"]}]} for row in rows]


def ask(stage, data):
    """The problems of a stage, made of the artifact in a folder."""
    (use,) = STAGES[stage].problems
    return bind(use, "problems.0", {"problems.0.data": data})()


def list_texts(row):
    return [message["content"] for message in [*row["prompt"], *row["completion"]]]


WAYS = Sampling()


@dataclass
class Side:
    """A script in the place of a trained model."""

    speak: object
    sampling: Sampling = WAYS
    seed: int = 0
    step: int = 0
    policy = SimpleNamespace(max_length=10_000)

    def encode(self, messages):
        return []

    def sample(self, requests):
        return [SimpleNamespace(text=self.speak(one.row["prompt"]), finish="stop") for one in requests]


def play_partner(seen):
    """What the partner would really say: its kind shows in what it has said."""
    said = [message["content"].splitlines()[-1] for message in seen if message["role"] == "user"]
    replies = [message["content"] for message in seen if message["role"] == "assistant"]
    kinds = (kind for kind in APPEALS if answer_all(kind, said)[: len(replies)] == replies)
    return answer_all(next(kinds), said)[-1]


def answer_all(kind, said):
    talk = Talk(kind)
    return [talk.step(turn).observation for turn in said]


def play_agent(seen):
    """What an agent that imitates the data says in the last two turns."""
    turns = sum(message["role"] == "assistant" for message in seen)
    return ASK if turns == 2 else THANKS if seen[-1]["content"] == YES else BYE


@pytest.fixture(scope="module")
def talks():
    """Every twelfth of the recipe's dialogues."""
    return complete(bind(STAGES["talks"].problems[0])()[::12])


@pytest.fixture
def regenerate(tmp_path, monkeypatch, talks):
    """Pass the dialogues through the stages `rewrites` and `regenerated`."""

    def run(partner=play_partner, agent=play_agent):
        sides = {tmp_path / "partner": Side(partner), tmp_path / "agent": Side(agent)}
        monkeypatch.setattr(hindsight, "guest", lambda folder: sides[folder])
        for name in ("dialogues", "rewrites", "made"):
            (tmp_path / name).mkdir()
        write_rows(tmp_path / "dialogues", "chat", talks)
        asked = ask("rewrites", tmp_path / "dialogues")
        texts = [hindsight_controller(row, np.random.default_rng(i)) for i, row in enumerate(asked)]
        written = complete([row | {"answer": text} for row, text in zip(asked, texts, strict=True)])
        write_rows(tmp_path / "rewrites", "chat", written)
        context = SimpleNamespace(input=lambda port: tmp_path / port, output=lambda port: tmp_path / "made", seed=1)
        hindsight.regenerate(context, **REGENERATED.function.options)
        return read_rows(tmp_path / "made", "chat"), dict(zip([row["id"] for row in asked], texts, strict=True))

    return run


def test_a_regenerated_dialogue_is_its_source_up_to_the_turn_token_for_token(regenerate, talks, tiny_policy):
    made, texts = regenerate(partner=lambda seen: f"reply {len(seen)}", agent=lambda seen: f"turn {len(seen)}")
    sources = {row["id"]: row for row in talks}
    failed = {row["id"] for row in talks if sum(read_metadata(row)["rewards"]) == 0}
    assert set(texts) == failed
    assert {read_metadata(row)["source"] for row in made} == failed
    for row in made:
        notes = read_metadata(row)
        source, turn = sources[notes["source"]], notes["hindsight_turn"]
        old, new, place = list_texts(source), list_texts(row), 2 * turn - 1
        kept, same = (one["prompt"][:place] for one in (source, row))
        assert encode_prompt(tiny_policy.tokenizer, kept) == encode_prompt(tiny_policy.tokenizer, same)
        assert f"{turn}: {new[place]}" == texts[notes["source"]]
        assert new[place] != old[place]
        # The partner sees the dialogue without what it said first, as a message of its own.
        assert new[place + 1 :: 2] == [f"reply {n}" for n in range(place, len(old) - 1, 2)]
        assert new[place + 2 :: 2] == [f"turn {n}" for n in range(place + 2, len(old), 2)]
        assert len(new) == len(old)
        assert "rewards" not in notes


def test_originals_are_kept_and_the_models_of_both_sides_know_them_alone():
    assert [source.from_ for source in STAGES["augmented"].sources] == ["talks", "regenerated"]
    inputs = REGENERATED.inputs
    assert inputs == {"dialogues": "talks", "rewrites": "rewrites", "partner": "partner", "agent": "imitation"}
    assert {name: STAGES[name].data for name in ("partner", "imitation", "critic", "schooled")} == {
        "partner": "partner_side",
        "imitation": "talks",
        "critic": "rated",
        "schooled": "augmented",
    }
    assert {STAGES[name].problems[0].options["data"] for name in ("partner_side", "rated", "rewrites")} == {"talks"}
    assert {STAGES[name].train_on for name in ("partner", "imitation", "schooled")} == {"all"}


def test_the_partners_model_learns_what_the_partner_says(tmp_path, talks):
    write_rows(tmp_path, "chat", talks[:5])
    for row, source in zip(ask("partner_side", tmp_path), talks, strict=False):
        said = [m["content"] for m in row["prompt"] if m["role"] == "assistant"]
        assert [*said, row["answer"]] == list_texts(source)[2::2]
        assert row["prompt"][0]["content"] == "\n".join(list_texts(source)[:2])


def test_the_reward_model_is_asked_what_it_was_taught(tmp_path, talks):
    (reward,), (rated,) = VALUES.rewards, STAGES["rated"].problems
    assert VALUES.rewards == ORIGINAL.rewards
    assert (reward.use, reward.options["judge"]) == ("judges.model", "critic")
    assert reward.options["template"] == rated.options["template"]
    assert reward.options["words"] == {"good": 1.0, "bad": 0.0}
    write_rows(tmp_path, "chat", talks)
    rows = ask("rated", tmp_path)
    assert {row["answer"] for row in rows} == {"good", "bad"}
    for row, source in zip(rows, talks, strict=True):
        assert row["prompt"][0]["content"] == "\n".join([*list_texts(source), "did it work ?"])
        assert row["answer"] == ("good" if YES in list_texts(source) else "bad")


def read_moves(row):
    """A dialogue as states, actions and rewards; appeals of one kind are one action."""
    texts = list_texts(row)
    actions = [find_kind(text) or text for text in texts[1::2]]
    states = [" ".join([*sum(zip(actions, texts[2::2], strict=False), ())][: 2 * i]) for i in range(len(actions))]
    rewards = [*[0.0] * (len(actions) - 1), float(YES in texts)]
    return list(zip(states, actions, rewards, strict=True))


BORED = ("facts numbers bore me", "story tales bore me")


def test_only_the_augmented_dialogues_teach_the_other_kind_of_appeal(regenerate, talks):
    made, _ = regenerate()
    originals, both = ([read_moves(row) for row in rows] for rows in (talks, [*talks, *made]))
    tried = {(state, action) for episode in originals for state, action, _ in episode}
    plain, augmented = Table(ORIGINAL, originals, steps=200), Table(VALUES, both, steps=200)
    for state, good in zip(BORED, ("story", "facts"), strict=True):
        assert (state, good) not in tried
        assert {action for before, action in tried if before == state} == {state.split()[0], BEG}
        best = [table.actions[int(table.q_SA[table.states.index(state)].argmax())] for table in (plain, augmented)]
        assert best[0] != good
        assert best[1] == good
        assert float(augmented.v_S[augmented.states.index(state)]) > 0.5
        assert float(plain.v_S[plain.states.index(state)]) == pytest.approx(0.0, abs=0.05)


def test_both_agents_learn_as_long_by_the_same_losses():
    stages = {name: STAGES[name].model_dump() for name in ("values", "original", "schooled", "imitation")}
    for one, other, differ in (("values", "original", {"model", "data"}), ("schooled", "imitation", {"data"})):
        assert {key for key in stages[one] if stages[one][key] != stages[other][key]} == differ
    assert (VALUES.model, VALUES.data, ORIGINAL.model, ORIGINAL.data) == ("schooled", "augmented", "imitation", "talks")
    assert REPORT.models == {"imitation": "imitation", "original": "imitation", "hindsight": "schooled"}
    uses = {name: use for name, (use,) in REPORT.logits_processors.items()}
    assert {name: use.options["values"] for name, use in uses.items()} == {
        "original": "original",
        "hindsight": "values",
    }
    assert {use.options["beta"] for use in uses.values()} == {8.0}
    expectile, bellman, conservative = (bind(use) for use in VALUES.loss)
    columns = {"q_target_T": torch.tensor([1.0, -1.0]).double(), "v_T": torch.zeros(2).double()}
    assert expectile.ask(0, columns).tolist() == pytest.approx([0.35, 0.15])
    assert (bellman.name, conservative.name) == ("bellman", "conservative")


def test_partners_who_are_met_are_new():
    talked = ProblemsUse.model_validate(STAGES["talks"].problems[0].options["of"])
    train, test = (bind(use)() for use in (talked, REPORT.tasks[0]))
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in test}
    assert {row["answer"] for row in test} == set(APPEALS)
    assert REPORT.env.use == "persuasion"
