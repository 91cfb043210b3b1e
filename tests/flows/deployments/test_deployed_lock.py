"""A deployment with a lock runs the version that it was deployed with, and says in words what stands in the way."""

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from flows.deployments.deploy import deploy_recipes
from flows.deployments.deployables import make_deployable
from flows.deployments.deployed_lock import apply_lock
from flows.planning.locking import lock_recipe
from flows.planning.recipe_plan import plan_recipe
from lineage.audit import log as audit_log
from lineage.layout import Layout
from schemas.errors import PlanError

RECIPE = """\
name: held
seed: 3
promote: {model: base, gate: exam, name: chat}
profiles:
  tiny: {stages: {exam: {limit: 2}}}
stages:
  base: {kind: init}
  exam:
    kind: evaluate
    model: base
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    max_completion_length: 4
    gate: {metric: accuracy, min: 0.0}
"""
NOTHING = {"profile": None, "to": [], "start": [], "fresh": False, "overrides": []}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "held.yaml").write_text(RECIPE)
    return Layout(tmp_path)


def lock(layout, **options):
    return list(lock_recipe("held.yaml", layout, **options))


def deploy(layout, *, locked=True):
    file = layout.root / "held.yaml"
    return deploy_recipes([file], layout, every=False, prune=False, prefect_yaml=True, locked=locked)


def test_a_deployment_is_held_to_its_lock_until_it_is_deployed_again(checkout, capsys):
    lock(checkout)
    assert deploy(checkout) == 0
    given = yaml.safe_load((checkout.root / "prefect.yaml").read_text())["deployments"][0]["parameters"]
    digest = make_deployable(checkout.root / "held.yaml", checkout, locked=True).lock.digest
    assert given == {"recipe": "held.yaml", "locked": digest}
    entry = list(audit_log.read_entries(checkout))[-1]
    assert (entry["action"], entry["facts"]) == (
        "deployed",
        {"recipe": "held", "file": "held.yaml", "locked": digest},
    )
    held = apply_lock(checkout, "held.yaml", digest, NOTHING)
    assert held == NOTHING | {"profile": None, "locked": True}
    assert plan_recipe("held.yaml", checkout, **held).recipe == "held"
    # A changed recipe is refused in words, also where the new lock fits it.
    (checkout.root / "held.yaml").write_text(RECIPE.replace("min: 0.0", "min: 0.25"))
    with pytest.raises(
        PlanError, match=r"held\.yaml has drifted from held\.lock:\n    stages\.exam\.gate\.0\.min: 0\.0 → 0\.25"
    ):
        plan_recipe("held.yaml", checkout, **apply_lock(checkout, "held.yaml", digest, NOTHING))
    lock(checkout)
    again = r"is not the lock that held\.yaml was deployed with; .*posttrain deploy --locked held\.yaml"
    for parameter in (digest, None, ""):  # what a caller of Prefect's API gives does not loosen it
        with pytest.raises(PlanError, match=again):
            apply_lock(checkout, "held.yaml", parameter, NOTHING)
    assert deploy(checkout) == 0
    now = make_deployable(checkout.root / "held.yaml", checkout, locked=True).lock.digest
    assert apply_lock(checkout, "held.yaml", now, NOTHING)["locked"]
    with pytest.raises(PlanError, match=again):  # the digest of a lock that was deployed before
        apply_lock(checkout, "held.yaml", digest, NOTHING)
    with pytest.raises(PlanError, match="a run takes no seed"):  # another way to write the path is the same recipe
        apply_lock(checkout, f"../{checkout.root.name}/held.yaml", None, NOTHING | {"profile": "tiny"})
    # Deployed without a lock, it runs what the recipe says on the day.
    assert deploy(checkout, locked=False) == 0
    assert apply_lock(checkout, "held.yaml", None, NOTHING) == NOTHING


def test_a_checkout_whose_log_knows_no_deployment_holds_to_the_parameter(checkout):
    lock(checkout)
    digest = make_deployable(checkout.root / "held.yaml", checkout, locked=True).lock.digest
    assert apply_lock(checkout, "held.yaml", digest, NOTHING)["locked"]
    with pytest.raises(PlanError, match="is not the lock"):
        apply_lock(checkout, "held.yaml", "ab" * 32, NOTHING)


def test_a_held_run_takes_nothing_that_changes_what_it_does(checkout):
    lock(checkout)
    made = make_deployable(checkout.root / "held.yaml", checkout, locked=True)
    for options in ({"overrides": ["stages.exam.gate.min=0.25"]}, {"overrides": ["seed=4"]}, {"profile": "tiny"}):
        with pytest.raises(PlanError, match="a run takes no seed, overrides or other profile"):
            apply_lock(checkout, "held.yaml", made.lock.digest, NOTHING | options)
    assert list(made.form["properties"]) == ["from_stages", "to_stages", "fresh"]
    Draft202012Validator.check_schema(made.form)
    check = Draft202012Validator(made.form).validate
    check(made.parameters | {"to_stages": ["base"], "fresh": True})
    for wrong in ({"seed": 4}, {"overrides": []}, {"profile": "tiny"}, {"locked": ""}, {"recipe": "other.yaml"}):
        with pytest.raises(ValidationError):
            check(made.parameters | wrong)


def test_a_lock_of_a_profile_runs_that_profile(checkout):
    lock(checkout, profile="tiny")
    made = make_deployable(checkout.root / "held.yaml", checkout, locked=True)
    assert apply_lock(checkout, "held.yaml", made.lock.digest, NOTHING)["profile"] == "tiny"


def test_what_cannot_be_held_is_not_deployed_and_says_why(checkout, capsys):
    assert deploy(checkout) == 3
    assert "held.lock: no such lock; write it: posttrain lock" in capsys.readouterr().err
    lock(checkout)
    file = checkout.root / "held.lock"
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    assert deploy(checkout) == 3
    assert "held.lock: not a lock" in capsys.readouterr().err
    file.write_text(text)
    (checkout.root / "held.yaml").write_text(RECIPE.replace("name: chat", "name: other"))
    assert deploy(checkout) == 3
    assert "promote.name: chat → other" in capsys.readouterr().err
    assert [e["action"] for e in audit_log.read_entries(checkout)] == []


def test_a_champion_in_a_gate_is_pinned_by_the_lock_or_declared_floating(checkout, monkeypatch):
    """A champion that changes after the lock was written: refused by default, another key where the gate says so."""
    from flows.planning import champion_inputs as challenge
    from lineage.registry.champions import Champion, Standing
    from lineage.registry.registered import Registered
    from lineage.sources.resolve import Source

    now = [None]

    def standing(layout, name):
        champion = now[0] and Champion(name, now[0], "ab" * 32, f"{now[0]}" * 64, "model", None, "", None)
        return Standing(name, champion, [], [], False, [], Registered(name, None, {}))

    monkeypatch.setattr(challenge, "read_standing", standing)
    monkeypatch.setattr(challenge, "find_source", lambda source, *_: Source(checkout.root, source[-1] * 64))
    for module in ("compile", "contracts"):
        monkeypatch.setattr(f"flows.planning.{module}.find_source", lambda source, *_: Source(checkout.root, "x"))
    monkeypatch.setattr("flows.planning.locking.pin_source", lambda name, digest, *_: {"digest": digest})
    monkeypatch.setattr("flows.planning.compile.verify_contracts", lambda *_: None)
    against = "gate: {against: champion, max_regression: 0.1%s}"
    for floating, kept in ((", floating: true", True), ("", False)):
        text = RECIPE.replace("gate: {metric: accuracy, min: 0.0}", against % floating)
        (checkout.root / "held.yaml").write_text(text)
        now[0] = 1
        lock(checkout)
        first = plan_recipe("held.yaml", checkout, locked=True)
        for version in (2, None):
            now[0] = version
            if kept:
                second = plan_recipe("held.yaml", checkout, locked=True)
                assert second.step("exam").key != first.step("exam").key
            else:
                with pytest.raises(PlanError, match=r"stages\.exam\.(against\.champion: mlflow:chat@1|gate)"):
                    plan_recipe("held.yaml", checkout, locked=True)
