"""Imagined conversations: data from the task's text and one model alone, and ILQL on them.

The data pass through the recipe's own functions; a grammar stands in for what the imagination model writes. Not shown:
the human study.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.data.rows import read_metadata, write_rows
from learning.lookup import bind
from learning.sampling import logits_processors
from learning.toy_tasks.outings import ACTIVITIES, NAMES, TRAITS, describe_person, outing_imagination
from schemas.recipe.load import load_recipe
from tests.papers.tabular_values import Table

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "imagined-conversations.yaml")
STAGES = LOADED.stages
REPORT, VALUES = STAGES["report"], STAGES["values"]
IMAGINING = ("personas", "talks", "critiques")


def find_upstream(name, until=()):
    """The stages that a stage is made of."""
    found, waiting = set(), [name]
    while waiting:
        for port in LOADED.ports(waiting.pop()):
            new = [step for step in port.steps if step not in found and not port.path.startswith("decontaminate")]
            found |= set(new)
            waiting += [step for step in new if step not in until]
    return found


def test_the_data_come_from_the_text_of_the_task_and_the_imagination_alone():
    upstream = find_upstream("episodes")
    assert upstream == {"imagined", "critiques", "talks", "personas", "tasks"}
    assert all(STAGES[name].kind == "synthesize" for name in upstream)
    assert {STAGES[name].teacher.use for name in IMAGINING} == {"outing_imagination"}
    for name in upstream:
        text = STAGES[name].model_dump_json()
        assert "interview" not in text
        assert "path:" not in text
        assert '"outings"' not in text
        assert [port.source for port in LOADED.ports(name) if port.source is not None] == []
    row = bind(STAGES["tasks"].problems[0])()[0]
    assert row["prompt"][0]["content"] == "find an outing for a person imagine a person"
    assert (row["answer"], row["metadata"]) == (None, None)


PEOPLE = [describe_person(name, activity) for name, activity in zip(NAMES, [*ACTIVITIES] * 3, strict=False)]


def write_chat(folder, rows, texts):
    """A chat artifact with these completions."""
    folder.mkdir()
    said = [
        row | {"completion": [{"role": "assistant", "content": text}]} for row, text in zip(rows, texts, strict=True)
    ]
    write_rows(folder, "chat", said)
    return folder


def imagine(rows, seed=0, **habits):
    """What the imagination model would write, by its grammar."""
    return [outing_imagination(row, np.random.default_rng([seed, i]), **habits) for i, row in enumerate(rows)]


def ask(stage, folder):
    """The problems of a stage, made of the artifact in a folder."""
    (use,) = STAGES[stage].problems
    return bind(use, "problems.0", {"problems.0.data": folder})()


def imagine_all(folder, people, **habits):
    """The rows of `imagined` for some people, their talks, and the critiques of these."""
    row = bind(STAGES["tasks"].problems[0])()[0]
    asked = ask("talks", write_chat(folder / "personas", [row] * len(people), people))
    people = [person for person in people for _ in range(STAGES["talks"].problems[0].options["repeats"])]
    about = [f"find an outing for a person {person} imagine the talk" for person in people]
    assert [one["prompt"][0]["content"] for one in asked] == about
    talks = imagine(asked, **habits)
    judged = ask("critiques", write_chat(folder / "talks", asked, talks))
    shown = [f"{person}\n{talk}\njudge the talk" for person, talk in zip(people, talks, strict=True)]
    assert [one["prompt"][0]["content"] for one in judged] == shown
    verdicts = imagine(judged)
    return ask("imagined", write_chat(folder / "critiques", judged, verdicts)), talks, verdicts


@pytest.fixture
def imagined(tmp_path):
    return imagine_all(tmp_path, PEOPLE, guesses=0.3)


def test_every_persona_appears(imagined):
    rows, _, _ = imagined
    repeats = STAGES["talks"].problems[0].options["repeats"]
    assert [read_metadata(row)["persona"] for row in rows] == [person for person in PEOPLE for _ in range(repeats)]
    assert len({row["id"] for row in rows}) == repeats * len(PEOPLE)
    assert STAGES["episodes"].exact_dedup is False


def test_episodes_are_the_talks_and_earn_what_the_critique_says(imagined):
    rows, talks, verdicts = imagined
    assert {"good", "bad"} == set(verdicts)
    for row, talk, verdict in zip(rows, talks, verdicts, strict=True):
        said = [*(message["content"] for message in row["prompt"]), row["answer"]]
        assert said == [line.partition(": ")[2] for line in talk.splitlines()]
        assert [message["role"] for message in row["prompt"]] == ["user", *["assistant", "user"] * (len(said) // 2 - 1)]
        rewards = read_metadata(row)["rewards"]
        assert rewards == [*[0.0] * (len(said) // 2 - 1), float(verdict == "good")]
    assert STAGES["imagined"].teacher.use == "answer"


def test_what_cannot_be_read_is_left_out(tmp_path):
    good = "partner: hi\nagent: = spa"
    texts = [
        good,
        "agent: = spa",
        "partner: hi\nagent: water?\npartner: no",
        "partner: hi\npartner: you?\nagent: = gym",
        good,
    ]
    row = {"id": "r", "prompt": [{"role": "user", "content": "?"}], "answer": None, "family": "f"}
    rows = [row | {"id": str(i), "metadata": json.dumps({"talk": text})} for i, text in enumerate(texts)]
    made = ask("imagined", write_chat(tmp_path / "one", rows, ["good", "good", "good", "good", "perhaps"]))
    assert [one["id"] for one in made] == ["0"]


def test_the_losses_are_those_of_ilql():
    expectile, bellman, conservative = (bind(use) for use in VALUES.loss)
    v_T = torch.zeros(2).double()
    loss_T = expectile.ask(0, {"q_target_T": torch.tensor([1.0, -1.0]).double(), "v_T": v_T})
    assert loss_T.tolist() == pytest.approx([0.35, 0.15])
    gamma = VALUES.loss[1].options["gamma"]
    columns = {"reward_T": torch.tensor([0.5]).double(), "v_next_T": torch.tensor([2.0]).double()}
    at_target = bellman.ask(0, columns | {"q_TH": torch.full((1, 2), 0.5 + 2 * gamma).double()})
    assert at_target.tolist() == pytest.approx([0.0])
    assert bellman.ask(0, columns | {"q_TH": torch.zeros(1, 2).double()}).tolist() == pytest.approx(
        [(0.5 + 2 * gamma) ** 2]
    )
    assert conservative.name == "conservative"
    assert VALUES.heads == 2
    assert VALUES.target_network is not None


def test_decoding_is_the_imitation_times_the_exponential_of_the_advantage(monkeypatch):
    (use,) = REPORT.logits_processors["ilql"]
    one = use.model_copy(update={"beta": 1.0})

    class Values:
        vocabulary = 2

        def value_contexts(self, contexts):
            from learning.auxiliary_networks.action_values import TokenValues

            return TokenValues(torch.tensor([[[3.0, 2.0], [4.0, 5.0]]]), torch.tensor([2.0]))

    monkeypatch.setattr(logits_processors, "load_cached_values", lambda folder: Values())
    process = bind(one, "logits_processors.ilql.0", {"logits_processors.ilql.0.values": Path("v")})
    probabilities = process.ask(0, {"logits_BV": torch.zeros(1, 2), "contexts_B": [[1]]}).softmax(-1)[0]
    assert probabilities.tolist() == pytest.approx([0.7311, 0.2689], abs=1e-4)
    assert use.options["beta"] > 1
    assert REPORT.models == {"imitation": "imitation", "ilql": "imitation"}
    assert VALUES.model == "imitation"
    assert VALUES.data == STAGES["imitation"].data == "episodes"


def read_moves(row):
    """An imagined episode as states, actions and rewards; the state is what has been told."""
    said = [*(message["content"] for message in row["prompt"]), row["answer"]]
    turns, rewards = list(zip(said[1::2], [*said[2::2], ""], strict=True)), read_metadata(row)["rewards"]
    known, moves = frozenset(), []
    for (action, answer), reward in zip(turns, rewards, strict=True):
        moves.append((" ".join(sorted(known)), action, reward))
        known |= {f"{action.rstrip('?')}={answer}"} if answer else set()
    return moves


def test_values_of_imagined_talks_ask_before_they_recommend(tmp_path):
    """After one answer imitation recommends in a third of the talks; by the values another question is better."""
    people = [describe_person("anna", activity) for activity in ACTIVITIES for _ in range(4)]
    episodes = [read_moves(row) for row in imagine_all(tmp_path, people)[0]]
    table = Table(VALUES, episodes, steps=400)

    beta = REPORT.logits_processors["ilql"][0].options["beta"]
    ends = torch.tensor([action.startswith("=") for action in table.actions])
    early = ["outdoors=yes", "outdoors=no", "water=no", "active=no"]  # three things or four are possible
    imitated, improved = (torch.stack([table.weigh(state, b)[ends].sum() for state in early]) for b in (0.0, beta))
    assert float(imitated.mean()) > 0.2
    assert float(improved.mean() / imitated.mean()) < 0.5
    for activity, of in ACTIVITIES.items():
        known = " ".join(sorted(f"{trait}={'yes' if is_so else 'no'}" for trait, is_so in zip(TRAITS, of, strict=True)))
        assert table.improve(known, beta) == f"= {activity}"


def test_people_who_are_met_were_not_imagined():
    assert REPORT.env.use == "interview"
    met = bind(REPORT.tasks[0])()
    names = {row["prompt"][0]["content"].split()[2] for row in met}
    assert not names & set(NAMES)
    assert len({row["id"] for row in met}) == len(met)
    assert {row["answer"] for row in met} == set(ACTIVITIES)
    for one, other in pairwise(sorted(ACTIVITIES.values())):
        assert one != other
