"""An evaluation of teams: every role is scored by what it said, episodes depend on their problem alone, resumable."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from learning.data.rows import read_rows, write_rows
from learning.models.policy import load_policy, save_policy
from lineage.reports.report import render_page
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate_roles import run
from tests.tasks.rl_stages import write_prompts

SPEC = importlib.util.spec_from_file_location("conversation_world", Path(__file__).with_name("conversation_world.py"))
world = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(world)
vowels, echo, Environment = world.vowels, world.echo, world.Environment


def stage(**more):
    base = {
        "kind": "evaluate",
        "models": {"plain": "m", "other": "o"},
        "prompts": "p",
        "roles": {
            "asks": {},
            "user": {"script": f"{__name__}:echo"},
            "answers": {"policy": "partner", "prompt": "{message}b{question}"},
        },
        "policies": {"partner": {"model": "x", "models": {"other": "y"}}},
        "turn_order": {"use": "in_order", "rounds": 2, "text": "{text}", "until": "c$"},
        "rewards": [f"{__name__}:vowels"],
        "metrics": ["mean_score", "accuracy"],
        "threshold": 0.2,
        "num_generations": 3,
        "temperature": 1.0,
        "max_completion_length": 6,
        "num_bootstrap": 200,
    }
    return Evaluate.model_validate(base | more)


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folders = {"models.plain": tiny_policy_folder}
    for number, name in enumerate(("models.other", "policies.partner.model", "policies.partner.models.other")):
        policy = load_policy(tiny_policy_folder)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        save_policy(policy, tmp_path / name)
        folders[name] = tmp_path / name
    return folders | {"prompts": write_prompts(tmp_path / "prompts")}


@pytest.fixture
def play(inputs, tmp_path):
    """Run a stage in a folder by name; return its result, its report and its samples."""

    def play(name, on_progress=lambda event: None, given=inputs, **settings):
        here = tmp_path / name
        (here / "checkpoints").mkdir(parents=True, exist_ok=True)
        context = Context(given, here, here / "checkpoints", seed=5, on_progress=on_progress)
        result = run(stage(**settings), context)
        report = here / "outputs/report"
        return result, json.loads((report / "results.json").read_text()), pq.read_table(report / "samples.parquet")

    return play


def score(text):
    return vowels([text])[0]


def read_transcript(row):
    """Return what each role said last, from the transcript of an episode."""
    said = {}
    for line in re.split(r"\n(?=asks: |user: |answers: )", row["completion"]):
        role, _, text = line.partition(": ")
        said.setdefault(role, []).append(text)
    return said


def test_every_role_and_team_is_scored_by_what_was_said(play):
    result, report, samples = play("a")
    rows = samples.to_pylist()
    assert len(rows) == 2 * 5 * 3
    said = [read_transcript(row) for row in rows]
    assert {role for one in said for role in one} == {"asks", "user", "answers"}
    # The score of an episode is that of the role which the evaluated model plays, not its partner's.
    assert [row["score"] for row in rows] == pytest.approx([score(one["asks"][-1]) for one in said])
    for team in ("plain", "other"):
        own = [one for one, row in zip(said, rows, strict=True) if row["model"] == team]
        for role in ("asks", "answers"):
            spoken = [score(one[role][-1]) if role in one else np.nan for one in own]
            by_problem = np.nanmean(np.reshape(spoken, (5, 3)), axis=1)
            (line,) = [
                x
                for x in report["roles"]["table"]
                if (x["role"], x["model"], x["metric"], x["family"]) == (role, team, "mean_score", "all")
            ]
            assert line["value"] == pytest.approx(np.nanmean(by_problem))
            assert line["low"] <= line["value"] <= line["high"]
            assert line["turns"] == pytest.approx(np.mean([len(one.get(role, [])) for one in own]))
            assert result.metrics[f"role/{role}/mean_score.{team}"] == line["value"]
        assert result.metrics[f"mean_score.{team}"] == result.metrics[f"role/asks/mean_score.{team}"]
    pairs = {(x["role"], x["model"], x["against"]) for x in report["roles"]["comparisons"]}
    assert pairs == {("asks", "other", "plain"), ("answers", "other", "plain")}
    assert result.metrics["turns.plain"] == pytest.approx(
        np.mean(
            [
                len(o["asks"]) + len(o.get("answers", []))
                for o, r in zip(said, rows, strict=True)
                if r["model"] == "plain"
            ]
        )
    )


def test_a_model_that_plays_both_roles_earns_their_mean(play):
    roles = {"asks": {}, "answers": {"prompt": "{message}"}}
    _, _, samples = play("both", roles=roles, policies={})
    for row in samples.to_pylist():
        said = read_transcript(row)
        own = [score(texts[-1]) for texts in said.values()]
        assert row["score"] == pytest.approx(sum(own) / len(own))


def test_a_team_has_its_own_partner(play, inputs):
    _, first, _ = play("a")
    swapped = inputs | {"policies.partner.models.other": inputs["policies.partner.model"]}
    _, second, _ = play("b", given=swapped)

    def of(report, team):
        return [x for x in report["roles"]["table"] if x["model"] == team]

    assert of(first, "plain") == of(second, "plain")
    assert of(first, "other") != of(second, "other")


def test_an_episode_depends_on_its_problem_alone(play, inputs, tmp_path):
    _, _, whole = play("whole")
    _, _, part = play("part", limit=2)
    ids = {row["id"] for row in part.to_pylist()}
    assert len(ids) == 2
    assert part.to_pylist() == [row for row in whole.to_pylist() if row["id"] in ids]
    (tmp_path / "reversed").mkdir()
    write_rows(tmp_path / "reversed", "prompts", read_rows(inputs["prompts"], "prompts")[::-1])
    _, _, other = play("other", given=inputs | {"prompts": tmp_path / "reversed"})
    texts = [sorted((r["model"], r["id"], r["completion"]) for r in samples.to_pylist()) for samples in (whole, other)]
    assert texts[0] == texts[1]


def test_an_evaluation_that_was_killed_is_the_one_that_was_not(play, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def kill(event):
        if event.get("step", 0) > 6:
            raise Killed

    monkeypatch.setattr("learning.evaluation.team_episodes.AT_ONCE", 6)
    env = {"use": f"{__name__}:Environment"}
    roles = {"asks": {"env": env}, "answers": {"policy": "partner"}}
    settings = {"roles": roles, "rewards": ["environment.earned"], "max_completion_length": 16}
    whole, report, samples = play("whole", **settings)
    assert whole.metrics["role/asks/mean_score.plain"] > 0
    with pytest.raises(Killed):
        play("broken", on_progress=kill, **settings)
    again, second, same = play("broken", **settings)
    assert (again.metrics, second, same.to_pylist()) == (whole.metrics, report, samples.to_pylist())


def test_rewards_of_roles_and_gates_work(play):
    outcome = {"use": "roles.outcome", "of": f"{__name__}:vowels", "role": "asks"}
    gate = {"metric": "mean_score", "against": "plain", "min_delta": 5.0}
    result, report, _ = play("a", rewards=[outcome], gate=[gate])
    values = {x["role"]: x["value"] for x in report["roles"]["table"] if x["model"] == "plain" and x["n"] == 5}
    assert values.keys() == {"asks", "answers"}
    assert result.metrics["gates_failed"] == 1


def test_reports_show_the_roles(play, tmp_path):
    result, report, _ = play("a")
    page = render_page("sections/evaluate.html.j2", {"details": {"exam": result.details}, "comparisons": {}})
    table = (tmp_path / "a/outputs/report/table.md").read_text()
    for line in report["roles"]["table"]:
        assert f"| {line['model']} | {line['family']} | {line['metric']} | {line['value']:.3f} [" in table
        assert f"<td>{line['role']}<td>{line['model']}<td>{line['family']}<td>{line['metric']}" in page
    assert "| role answers |" in table
    assert "| difference of role asks |" in table


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "guess"}, "`env` does not work with `roles`"),
        ({"solver": "answer_by_parts"}, "`solver` does not work with `roles`"),
        ({"engine": "vllm"}, "`engine: vllm` does not work with `roles`"),
        ({"resources": {"rollout": {"workers": 1}}}, "`resources.rollout` does not work with `roles`"),
        ({"turn_order": None}, "`roles` and `turn_order` belong together"),
        ({"policies": {"partner": {"models": {"other": "y"}}}}, "`partner` has no model for `plain`"),
        ({"policies": {"partner": {"model": "x", "models": {"othr": "y"}}}}, "no model is called `othr`"),
        ({"policies": {"partner": {"model": "x"}, "more": {"model": "x"}}}, "no role is played by `more`"),
        (
            {"policies": {"partner": {"model": "x", "models": {"plain": "x", "other": "y"}}}},
            "`model` has no effect",
        ),
        ({"roles": {"asks": {"policy": "partner"}}}, "which no role has"),
    ],
)
def test_what_does_not_work_with_roles_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        stage(**settings)
