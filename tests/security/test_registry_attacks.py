"""An insider with MLflow's registry, the state folder and the log's file, but no key: nothing forged is ever served."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.serving.models import choose
from lineage.artifacts.seal import write_seal
from lineage.audit import log as audit_log
from lineage.audit.moves import read_moves
from lineage.keys import VARIABLE
from lineage.layout import Layout
from lineage.registry.champions import move_champion, read_standing
from lineage.registry.client import open_client
from lineage.registry.rollback import restore_registry, roll_back
from lineage.sources.resolve import find_source
from lineage.verification.verify import verify
from schemas.errors import PlanError
from tests.lineage.conftest import Maker
from tests.registries import lay_empty_registry

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
MODELS = ("first", "second", "third", "evil")
TAG = "posttrain.move.{:06d}"


class Lab:
    """A checkout whose registered model `chat` had three champions; `evil` was made and never promoted."""

    def __init__(self, root, made):
        self.layout, self.made = Layout(root), made

    @property
    def mlflow(self):
        return open_client(self.layout)

    def version(self, number):
        return self.mlflow.get_model_version("chat", str(number))

    def tags(self, number, **tags):
        for name, value in tags.items():
            self.mlflow.set_model_version_tag("chat", str(number), name, value)

    def pretend(self, number, step):
        """Make the tags of a version those of another artifact."""
        made = self.made[step]
        self.tags(number, key=made.key, digest=made.outputs["policy"].digest, output="policy", step=step)

    def alias(self, number):
        self.mlflow.set_registered_model_alias("chat", "champion", str(number))

    def new_version(self, step, **tags):
        made = self.made[step]
        tags = {"key": made.key, "digest": made.outputs["policy"].digest, "output": "policy", **tags}
        return int(self.mlflow.create_model_version("chat", "dvc:///files/md5/ab/cd", tags=tags).version)

    def move_tag(self, number):
        return self.version(number).tags[TAG.format(number)]

    def digest(self, step):
        return self.made[step].outputs["policy"].digest

    def weights(self, step):
        return self.layout.artifact("sft", self.made[step].key) / "outputs/policy/model.safetensors"

    def lines(self):
        return audit_log.log_file(self.layout).read_bytes().splitlines(keepends=True)

    def write_lines(self, lines):
        audit_log.log_file(self.layout).write_bytes(b"".join(lines))

    def sql(self, text, *values):
        with closing(sqlite3.connect(self.layout.state / "mlflow.db")) as database:
            database.execute(text, values)
            database.commit()


def promoted(layout, made, names):
    now = None
    for name in names:
        evidence = {"gate": "exam", "key": "ab" * 32, "run": "run-1", "recipe": "small", "gates": [f"{name} 0.9"]}
        now = move_champion(layout, "chat", made[name].key, evidence=evidence, expected=now)
    return now


def a_maker(root):
    maker = Maker(root)
    for name in MODELS:
        files = {"model.safetensors": name.encode(), "config.json": b"{}"}
        maker.make(name, "sft", {"policy": files}, {"policy": "policy"})
    return maker


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", VARIABLE):
            patch.delenv(name, raising=False)
        maker = a_maker(tmp_path_factory.mktemp("template"))
        lay_empty_registry(maker.layout)
        promoted(maker.layout, maker.made, MODELS[:3])
    return maker


@pytest.fixture
def lab(template, tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(template.layout.root, tmp_path / "lab", copy_function=shutil.copy2)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path / "lab"))
    return Lab(tmp_path / "lab", template.made)


def forged(entry, **changes):
    """An entry as someone without the key writes it: with a hash that fits and the signature of another entry."""
    entry = entry | {"facts": entry["facts"] | changes}
    return entry | {"hash": audit_log.hash_entry(entry)}


def alias_by_hand(lab):
    lab.alias(1)


def alias_deleted(lab):
    lab.mlflow.delete_registered_model_alias("chat", "champion")


def alias_to_a_new_version(lab):
    lab.alias(lab.new_version("evil"))


def forged_tag_without_signature(lab):
    number = lab.new_version("evil")
    made = lab.made["evil"]
    tags = {
        "number": 4,
        "action": "promote",
        "version": number,
        "before": 3,
        "key": made.key,
        "output": "policy",
        "digest": lab.digest("evil"),
        "when": "2026-01-01",
        "who": "ada",
        "evidence": {},
    }
    lab.tags(number, **{TAG.format(4): json.dumps(tags)})
    lab.alias(number)


def forged_tag_with_an_old_signature(lab):
    number, made = lab.new_version("evil"), lab.made["evil"]
    entry = forged(json.loads(lab.move_tag(3)), number=4, version=number, key=made.key, digest=lab.digest("evil"))
    lab.tags(number, **{TAG.format(4): audit_log.encode_entry(entry)})
    lab.alias(number)


def genuine_tag_replayed(lab):
    number = lab.new_version("evil")
    lab.tags(number, **{TAG.format(4): lab.move_tag(3)})
    lab.alias(number)


def genuine_tag_replayed_on_an_older_version(lab):
    lab.tags(1, **{TAG.format(9): lab.move_tag(1)})
    lab.alias(1)


def tag_of_an_untrusted_key(lab, tmp=None):
    other = Layout(lab.layout.root.parent / "stranger")
    number = lab.new_version("evil")
    last = read_moves(lab.layout)["chat"][-1]
    entry = audit_log.append(
        other,
        "promote",
        model="chat",
        number=4,
        version=number,
        before=3,
        key=lab.made["evil"].key,
        digest=lab.digest("evil"),
        output="policy",
        evidence={},
        after=last.entry["hash"],
        log="ab" * 32,
    )
    lab.tags(number, **{TAG.format(4): audit_log.encode_entry(entry)})
    lab.alias(number)


def tags_of_another_model(lab):
    lab.pretend(3, "evil")


def digest_overwritten(lab):
    lab.tags(3, digest="0" * 64)


def output_overwritten(lab):
    lab.tags(3, output="../../../evil")


def malformed_tag(lab):
    for number, text in enumerate(("{", "[" * 5000, '{"number": 1e999}', "\x1b[2J", "null", "[]"), 4):
        lab.tags(2, **{TAG.format(number): text})


def tag_of_nonsense_numbers(lab):
    text = json.dumps(json.loads(lab.move_tag(3)) | {"number": True, "facts": [1], "hash": 7})
    lab.tags(3, **{TAG.format(3): text})


def move_tags_deleted(lab):
    for number in (1, 2, 3):
        lab.mlflow.delete_model_version_tag("chat", str(number), TAG.format(number))


def version_deleted(lab):
    lab.mlflow.delete_model_version("chat", "3")


def model_deleted(lab):
    lab.mlflow.delete_registered_model("chat")


def model_renamed(lab):
    lab.mlflow.rename_registered_model("chat", "chatter")


def another_model_renamed_to_it(lab):
    lab.mlflow.rename_registered_model("chat", "chatter")
    lab.mlflow.create_registered_model("chat")
    lab.alias(lab.new_version("evil"))


def source_changed(lab):
    lab.sql("update model_versions set source = ? where name = 'chat' and version = 3", "file:///tmp/evil")


def registry_lost(lab):
    for file in lab.layout.state.glob("mlflow.db*"):
        file.unlink()


IN_MLFLOW = [
    alias_by_hand,
    alias_deleted,
    alias_to_a_new_version,
    forged_tag_without_signature,
    forged_tag_with_an_old_signature,
    genuine_tag_replayed,
    genuine_tag_replayed_on_an_older_version,
    tag_of_an_untrusted_key,
    tags_of_another_model,
    digest_overwritten,
    output_overwritten,
    malformed_tag,
    tag_of_nonsense_numbers,
    move_tags_deleted,
    version_deleted,
    model_deleted,
    model_renamed,
    another_model_renamed_to_it,
    source_changed,
    registry_lost,
]


@pytest.mark.parametrize("attack", IN_MLFLOW, ids=lambda attack: attack.__name__)
def test_what_is_changed_in_mlflow_is_an_alarm_and_serves_nothing_else(lab, attack):
    attack(lab)
    third = lab.digest("third")
    chosen = choose("mlflow:chat@champion", lab.layout)
    assert (chosen.digest, (chosen.folder / "model.safetensors").read_bytes()) == (third, b"third")
    assert chosen.alarms
    assert all(line.isprintable() for line in chosen.alarms)
    with pytest.raises(PlanError, match="MLflow's registry differs from the audit log"):
        find_source("mlflow:chat@champion", lab.layout, ())
    with pytest.raises(PlanError, match="--restore"):  # a promotion does not cover it up
        move_champion(
            lab.layout, "chat", lab.made["evil"].key, evidence={}, expected=read_standing(lab.layout, "chat").champion
        )
    assert set(chosen.alarms) <= set(verify(lab.layout).problems)
    shown = CliRunner().invoke(app, ["champions"])
    assert (shown.exit_code, "ALARM" in shown.output) == (1, True), shown.output
    # In the middle of the incident: back to the one before, which puts MLflow right.
    before, after = roll_back(lab.layout, "chat", why="incident")
    assert (before.digest, after.digest) == (third, lab.digest("second"))
    assert read_standing(lab.layout, "chat").alarms == []
    aliased = lab.mlflow.get_model_version_by_alias("chat", "champion")
    assert aliased.tags["digest"] == lab.digest("second")
    assert read_moves(lab.layout)["chat"][-1].evidence["alarms"]
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("second")


@pytest.mark.parametrize("attack", [alias_to_a_new_version, version_deleted, malformed_tag])
def test_restore_writes_mlflow_again_and_the_log_says_so(lab, attack):
    attack(lab)
    alarms = restore_registry(lab.layout, "chat")
    assert alarms
    assert read_standing(lab.layout, "chat").alarms == []
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("third")
    last = read_moves(lab.layout)["chat"][-1]
    assert (last.action, last.evidence) == ("restore", {"alarms": alarms})
    assert restore_registry(lab.layout, "chat") == []
    assert roll_back(lab.layout, "chat")[1].digest == lab.digest("second")  # a restored champion is the same one


def test_an_alias_without_any_promotion_is_no_champion(lab):
    mlflow = lab.mlflow
    for name in ("fresh", 'it\'s "new"'):
        mlflow.create_registered_model(name)
        mlflow.create_model_version(name, "dvc:///files/md5/ab/cd", tags={"key": lab.made["evil"].key})
        mlflow.set_registered_model_alias(name, "champion", "1")
    with pytest.raises(PlanError, match="the audit log has none"):
        choose("mlflow:fresh@champion", lab.layout)
    with pytest.raises(PlanError, match="no move is known that made it champion"):
        find_source("mlflow:fresh@champion", lab.layout, ())
    shown = CliRunner().invoke(app, ["champions", "--json"])
    alarms = {each["name"]: each["alarms"] for each in json.loads(shown.output)}
    assert (alarms["chat"], len(alarms["fresh"]), len(alarms['it\'s "new"'])) == ([], 1, 1)
    assert restore_registry(lab.layout, "fresh")
    assert read_standing(lab.layout, "fresh").alarms == []


def test_a_version_by_number_is_what_was_promoted_as_it_or_nothing(lab):
    lab.pretend(2, "evil")
    number = lab.new_version("evil")
    assert choose("mlflow:chat@2", lab.layout).digest == lab.digest("second")
    assert find_source("mlflow:chat@2", lab.layout, ()).digest == lab.digest("second")
    with pytest.raises(PlanError, match="was never champion"):
        choose(f"mlflow:chat@{number}", lab.layout)
    with pytest.raises(PlanError, match="the artifact here or the source of the version differs"):
        find_source(f"mlflow:chat@{number}", lab.layout, ())


def entry_altered(lab):
    lines = lab.lines()
    entry = json.loads(lines[-1])
    lab.write_lines([*lines[:-1], audit_log._encode_line(forged(entry, key=lab.made["evil"].key))])


def entry_forged_at_the_end(lab):
    lines = lab.lines()
    last = json.loads(lines[-1])
    facts = last["facts"] | {"key": lab.made["evil"].key, "digest": lab.digest("evil"), "number": 4, "version": 3}
    entry = last | {"number": last["number"] + 1, "previous": last["hash"], "facts": facts}
    lab.write_lines([*lines, audit_log._encode_line(entry | {"hash": audit_log.hash_entry(entry)})])


def entry_forged_with_a_key_of_ones_own(lab):
    other = Layout(lab.layout.root.parent / "stranger")
    shutil.copytree(lab.layout.state, other.state)
    shutil.rmtree(other.state / "keys")
    audit_log.append(
        other,
        "promote",
        model="chat",
        number=4,
        version=3,
        before=3,
        key=lab.made["evil"].key,
        digest=lab.digest("evil"),
        output="policy",
        evidence={},
        after=None,
        log=None,
    )
    shutil.copy(audit_log.log_file(other), audit_log.log_file(lab.layout))
    shutil.copy(audit_log.head_file(other), audit_log.head_file(lab.layout))


def entry_removed_from_the_middle(lab):
    lines = lab.lines()
    lab.write_lines(lines[:1] + lines[2:])


def entries_swapped(lab):
    lines = lab.lines()
    lab.write_lines([*lines[:-2], lines[-1], lines[-2]])


def tail_cut_off(lab):
    lab.write_lines(lab.lines()[:-1])


def log_emptied(lab):
    lab.write_lines([])


def log_of_another_checkout(lab):
    other = Layout(lab.layout.root.parent / "other")
    audit_log.append(
        other,
        "promote",
        model="chat",
        number=1,
        version=1,
        before=None,
        key=lab.made["evil"].key,
        digest=lab.digest("evil"),
        output="policy",
        evidence={},
        after=None,
        log=None,
    )
    shutil.copy(audit_log.log_file(other), audit_log.log_file(lab.layout))
    shutil.copy(audit_log.head_file(other), audit_log.head_file(lab.layout))


IN_THE_LOG = [
    entry_altered,
    entry_forged_at_the_end,
    entry_forged_with_a_key_of_ones_own,
    entry_removed_from_the_middle,
    entries_swapped,
    tail_cut_off,
    log_emptied,
    log_of_another_checkout,
]


@pytest.mark.parametrize("attack", IN_THE_LOG, ids=lambda attack: attack.__name__)
def test_a_log_that_does_not_hold_serves_promotes_and_moves_nothing(lab, attack):
    attack(lab)
    now = lab.version(3)
    for refused in (
        lambda: choose("mlflow:chat@champion", lab.layout),
        lambda: find_source("mlflow:chat@champion", lab.layout, ()),
        lambda: roll_back(lab.layout, "chat"),
        lambda: move_champion(lab.layout, "chat", lab.made["evil"].key, evidence={}, expected=None),
        lambda: read_moves(lab.layout),
    ):
        with pytest.raises(PlanError, match=r"the audit log does not hold: .*lineage --verify"):
            refused()
    assert verify(lab.layout).problems
    assert lab.version(3).tags == now.tags
    assert int(lab.mlflow.get_model_version_by_alias("chat", "champion").version) == 3


def test_a_tail_cut_off_together_with_its_head_is_seen_by_the_moves_that_mlflow_holds(lab):
    lab.write_lines(lab.lines()[:-1])
    last = json.loads(lab.lines()[-1])
    audit_log.head_file(lab.layout).write_bytes(audit_log._encode_line(audit_log.anchor_of(last)))
    chosen = choose("mlflow:chat@champion", lab.layout)
    assert chosen.digest == lab.digest("second")  # what the log that is left promoted
    assert any("its audit log does not hold any more" in alarm for alarm in chosen.alarms)
    assert any("its audit log does not hold any more" in problem for problem in verify(lab.layout).problems)


def test_bytes_after_the_log_that_are_no_entry_stop_nothing_and_verify_names_them(lab):
    with audit_log.log_file(lab.layout).open("ab") as log:
        log.write(b"\x00 nonsense {\n")
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("third")
    roll_back(lab.layout, "chat")
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("second")
    assert any("bytes that posttrain did not write" in problem for problem in verify(lab.layout).problems)


def test_a_log_moved_away_is_replaced_by_the_signed_moves_in_mlflow(lab):
    """The way out of a log that is damaged for good; what checks it goes on to say that it is not the old one."""
    for file in (audit_log.log_file(lab.layout), audit_log.head_file(lab.layout)):
        file.unlink()
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("third")
    assert roll_back(lab.layout, "chat")[1].digest == lab.digest("second")
    assert [m.number for m in read_moves(lab.layout)["chat"]] == [1, 2, 3, 4]


def weights_swapped(lab):
    lab.weights("third").write_bytes(b"evil!")


def artifact_swapped_with_its_manifest(lab):
    """The whole folder of another model, with a manifest and seal that fit it, under the promoted key."""
    here, evil = (lab.layout.artifact("sft", lab.made[name].key) for name in ("third", "evil"))
    shutil.rmtree(here)
    shutil.copytree(evil, here)


def manifest_written_for_other_files(lab):
    """Files of another model under the promoted key, with a manifest and a seal that fit both."""
    folder, evil = (lab.layout.artifact("sft", lab.made[name].key) for name in ("third", "evil"))
    shutil.copytree(evil / "outputs", folder / "outputs", dirs_exist_ok=True)
    manifest = lab.made["third"].model_copy(update={"outputs": lab.made["evil"].outputs})
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1))
    write_seal(folder)


def file_added(lab):
    (lab.weights("third").parent / "adapter_config.json").write_text("{}")


def artifact_gone(lab):
    shutil.rmtree(lab.layout.artifact("sft", lab.made["third"].key))


IN_THE_STORE = [
    weights_swapped,
    artifact_swapped_with_its_manifest,
    manifest_written_for_other_files,
    file_added,
    artifact_gone,
]


@pytest.mark.parametrize("attack", IN_THE_STORE)
def test_other_bytes_behind_the_promoted_digest_are_not_served(lab, attack):
    attack(lab)
    with pytest.raises(PlanError, match=r"is not what was published|not in this checkout|which was promoted"):
        choose("mlflow:chat@champion", lab.layout)
    assert roll_back(lab.layout, "chat")[1].digest == lab.digest("second")
    assert choose("mlflow:chat@champion", lab.layout).digest == lab.digest("second")
