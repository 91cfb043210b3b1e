"""A damaged record stops no plan and no run; verification names it, from the command line too."""

import pytest

WORK = """
def number(context, *, value: int = 1):
    print("writing", value)
    context.log(1, value=value)
    (context.output("result") / "n.txt").write_text(str(value))
"""
RECIPE = """
name: damaged
stages:
  a: {kind: python, function: {use: "damaged_work:number", value: 3}}
  b: {kind: python, function: "damaged_work:number", inputs: {x: a}}
"""


@pytest.fixture
def ran(checkout, monkeypatch):
    from flows.planning.recipe_plan import plan_recipe
    from flows.runs.launch import run_plan

    made = checkout("root", RECIPE, {"damaged_work": WORK})
    monkeypatch.syspath_prepend(str(made.layout.root))

    def go():
        return run_plan(plan_recipe(made.recipe, made.layout), made.layout, executor="inprocess", prefect=False)

    return made, go


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"key": "\xff"}'])
def test_a_damaged_manifest_is_a_miss_that_says_so_and_is_made_again(ran, damage):
    from flows.planning.explain import explain_plan
    from flows.planning.recipe_plan import plan_recipe

    made, go = ran
    first = go().states["a"].manifest
    folder = made.layout.artifact("python", first.key)
    (folder / "manifest.json").write_bytes(damage)
    verdicts = explain_plan(plan_recipe(made.recipe, made.layout), made.layout)
    assert verdicts["a"][0] == "MISS"
    assert "damaged" in verdicts["a"][1]
    again = go()
    assert {n: s.state for n, s in again.states.items()} == {"a": "done", "b": "cached"}
    assert again.states["a"].manifest.outputs == first.outputs
    assert set(made.digests()) == {"a", "b"}
    assert made.leftovers() == []


def test_the_command_line_names_a_flipped_byte_of_the_log(ran):
    made, go = ran
    folder = made.layout.artifact("python", go().states["b"].manifest.key)
    log = folder / "step.log"
    log.write_bytes(bytes([log.read_bytes()[0] ^ 1]) + log.read_bytes()[1:])
    assert made.start("lineage", "--verify").wait(60) == 1
    assert str(log) in made.output.read_text().replace("\n", "")
    log.write_bytes(bytes([log.read_bytes()[0] ^ 1]) + log.read_bytes()[1:])
    assert made.start("lineage", "--verify").wait(60) == 0


def test_what_a_killed_run_left_is_swept_and_what_is_in_use_is_not(ran):
    import fcntl

    made, go = ran
    state = made.layout.state
    for name in ("work/dead", "work/busy", "ray/rdead", "ray/rbusy"):
        (state / name / "tmp-1").mkdir(parents=True)
        (state / name / "lock").touch()
        (state / name / "checkpoints").mkdir()
    with (state / "work/busy/lock").open() as work, (state / "ray/rbusy/lock").open() as ray:
        fcntl.flock(work, fcntl.LOCK_EX)
        fcntl.flock(ray, fcntl.LOCK_EX)
        go()
    assert (state / "work/busy/tmp-1").exists()
    assert (state / "ray/rbusy").exists()
    assert not (state / "work/dead/tmp-1").exists()
    assert (state / "work/dead/checkpoints").exists()
    assert not (state / "ray/rdead").exists()


def test_a_request_this_machine_cannot_meet_starts_nothing(checkout):
    impossible = RECIPE.replace("{kind: python, function: {", "{kind: python, resources: {num_cpus: 4096}, function: {")
    made = checkout("root", impossible, {"damaged_work": WORK})
    assert made.run("ray").wait(60) == 3
    assert "a: no node has CPU 4096" in made.output.read_text()
    assert not made.layout.state.exists()
