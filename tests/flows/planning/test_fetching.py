"""`posttrain fetch` against a local stand-in of the hub's HTTP API."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.fetching import download
from learning.data.sources.look import look_at_source
from learning.data.sources.source_rows import SourceRows
from lineage.layout import Layout
from lineage.sources.resolve import check_source, find_source
from schemas.errors import PlanError, StepError
from schemas.stages.data import Source

SECRET = "hf_a-token-of-nobody"
OLD, NEW = "1" * 40, "2" * 40
ROW = '{"prompt": "1+1?", "completion": "2"}\n'
RECIPE = """name: p
stages:
  base: {kind: init}
  one: {kind: sft, model: base, max_steps: 1, data: hub:lab/chats}
"""


class Hub(ThreadingHTTPServer):
    """Repositories by kind and name: the files of each commit, the newest last."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories = {"datasets/lab/chats": {OLD: {"chats.jsonl": ROW}}}
        self.tokens, self.asked = set(), []


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body, status=200, headers=None):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self):
        hub, path = self.server, unquote(urlsplit(self.path).path).strip("/")
        hub.tokens.add(self.headers.get("Authorization"))
        hub.asked.append(path)
        for name, commits in hub.repositories.items():
            plain = name.removeprefix("models/")
            if path.startswith(f"api/{name}/revision/"):
                revision = path.rpartition("/")[2]
                commit = revision if revision in commits else list(commits)[-1]
                siblings = [{"rfilename": file, "size": len(text)} for file, text in commits[commit].items()]
                return self.reply({"id": name.partition("/")[2], "sha": commit, "siblings": siblings})
            if path.startswith(f"api/{name}/tree/"):
                files = commits[path.rpartition("/")[2]]
                return self.reply(
                    [{"type": "file", "path": f, "size": len(t), "oid": name_blob(t)} for f, t in files.items()]
                )
            if path.startswith(f"{plain}/resolve/"):
                commit, _, file = path.removeprefix(f"{plain}/resolve/").partition("/")
                text = commits[commit][file]
                return self.reply(text.encode(), headers={"X-Repo-Commit": commit, "ETag": f'"{name_blob(text)}"'})
        return self.reply(
            {"error": f"nothing for {self.headers.get('Authorization')}"}, 404, {"X-Error-Code": "RepoNotFound"}
        )

    do_HEAD = do_GET


def name_blob(text):
    return hashlib.sha1(b"blob %d\0" % len(text) + text.encode(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = Hub()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path / "lab"))
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def call(hub, tmp_path):
    (tmp_path / "lab/r.yaml").write_text(RECIPE)

    def call(verb, *words):
        result = CliRunner().invoke(app, [verb, str(tmp_path / "lab/r.yaml"), *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_a_recipe_is_planned_once_its_data_is_fetched_and_pinned_by_its_lock(hub, call, tmp_path):
    layout = Layout(tmp_path / "lab")
    with pytest.raises(PlanError, match="posttrain fetch RECIPE"):
        find_source("hub:lab/chats", layout, ())
    assert f"hub:lab/chats: commit {OLD}, 0.0 MB" in call("fetch")
    assert hub.tokens == {f"Bearer {SECRET}"}
    asked = len(hub.asked)
    assert f"hub:lab/chats: commit {OLD}" in call("lock")
    assert len(hub.asked) == asked

    hub.repositories["datasets/lab/chats"][NEW] = {"chats.jsonl": ROW * 2}
    for file in (tmp_path / "hub/datasets--lab--chats/refs").iterdir():
        file.unlink()
    assert f"commit {OLD}, pinned by the lock" in call("fetch")
    assert find_source("hub:lab/chats", layout, ()).digest == OLD
    assert f"commit {NEW}, 0.0 MB" in call("fetch", "--update")
    source = find_source("hub:lab/chats", layout, ())
    assert (source.digest, (source.folder / "chats.jsonl").read_text()) == (NEW, ROW * 2)


MANY = {f"data/train-{i:05}-of-00003.jsonl": ROW * 2 for i in range(3)} | {"data/test-00000-of-00001.jsonl": ROW}
README = """---
configs:
- config_name: en
  data_files: [{split: train, path: en/train.jsonl}, {split: test, path: "en/te*.jsonl"}]
- config_name: de
  data_files: de.jsonl
---
"""
LISTED = {"README.md": README, "en/train.jsonl": ROW * 2, "en/test.jsonl": ROW, "de.jsonl": ROW * 3}
READ = [
    (MANY, "from: hub:lab/many", {"train-00000", "train-00001", "train-00002"}, 6),
    (MANY, "from: hub:lab/many, split: test", {"test-00000"}, 1),
    (MANY, 'from: hub:lab/many, split: "train[:3]"', {"train-00000", "train-00001"}, 3),
    (MANY, 'from: hub:lab/many, split: "train[1:2]"', {"train-00000"}, 1),
    (MANY, 'from: hub:lab/many, split: "train[-50%:]"', {"train-00000", "train-00001", "train-00002"}, 3),
    (LISTED, "from: hub:lab/many, subset: de", {"de.jsonl"}, 3),
    (LISTED, 'from: hub:lab/many, subset: en, split: "train"', {"train.jsonl"}, 2),
]


@pytest.mark.parametrize(("files", "source", "fetched", "rows"), READ)
def test_only_the_files_that_a_recipe_reads_are_fetched(hub, call, tmp_path, files, source, fetched, rows):
    hub.repositories["datasets/lab/many"] = {NEW: files}
    recipe = tmp_path / "lab/r.yaml"
    recipe.write_text(RECIPE.replace("hub:lab/chats", f"{{{source}}}"))
    assert f"hub:lab/many: commit {NEW}" in call("fetch")
    asked = [path for path in hub.asked if "/resolve/" in path and not path.endswith(".md")]
    assert {path.rpartition("/")[2].split("-of")[0] for path in asked} == fetched
    count = len(hub.asked)
    assert "r.yaml: ok" in call("validate")
    assert f"hub:lab/many: commit {NEW}" in call("lock")
    found = find_source("hub:lab/many", Layout(tmp_path / "lab"), ())
    check_source("hub:lab/many", found, Layout(tmp_path / "lab"))
    written = Source.model_validate(yaml.safe_load(recipe.read_text())["stages"]["one"]["data"])
    assert sum(1 for _ in SourceRows(found.folder, written, "chat").records()) == rows
    assert len(hub.asked) == count


def test_what_was_left_on_the_hub_is_asked_for_and_fetched_by_its_own_recipe(hub, call, tmp_path):
    hub.repositories["datasets/lab/many"] = {NEW: LISTED}
    recipe, layout = tmp_path / "lab/r.yaml", Layout(tmp_path / "lab")
    recipe.write_text(RECIPE.replace("hub:lab/chats", "{from: hub:lab/many, subset: en, split: test}"))
    call("fetch")
    for subset, split in (("en", None), ("de", "train")):
        source = Source.model_validate({"from": "hub:lab/many", "subset": subset, "split": split})
        with pytest.raises(StepError, match=r"(train|de)\.jsonl: not in the local cache of the hub; .*posttrain fetch"):
            look_at_source(find_source("hub:lab/many", layout, ()).folder, source, "chat")
    recipe.write_text(RECIPE.replace("hub:lab/chats", "{from: hub:lab/many, subset: en}"))
    call("fetch")
    assert "r.yaml: ok" in call("validate")


def test_copies_of_weights_in_other_formats_stay_where_they_are(hub):
    files = {"config.json": "{}", "model.safetensors": "w", "pytorch_model.bin": "w", "onnx/model.onnx": "w"}
    hub.repositories |= {"models/lab/both": {NEW: files}, "models/lab/old": {OLD: {"pytorch_model.bin": "w"}}}
    folder = download("hub:lab/both@main", "model", None)
    assert sorted(file.name for file in folder.rglob("*")) == ["config.json", "model.safetensors"]
    assert [file.name for file in download("hub:lab/old", "model", None).iterdir()] == ["pytorch_model.bin"]


def test_the_base_of_an_adapter_is_fetched_with_it(hub, call, tmp_path):
    hub.repositories["models/lab/adapter"] = {
        NEW: {"adapter_config.json": '{"base_model_name_or_path": "lab/base"}', "adapter_model.safetensors": "w"}
    }
    hub.repositories["models/lab/base"] = {OLD: {"config.json": "{}", "model.safetensors": "w"}}
    text = RECIPE.replace("model: base", "model: hub:lab/adapter")
    (tmp_path / "lab/r.yaml").write_text(text)
    lines = call("fetch").splitlines()
    assert [line.split(":")[1] for line in lines] == ["lab/chats", "lab/adapter", "lab/base"]
    assert (find_source("hub:lab/adapter", Layout(tmp_path / "lab"), ()).folder / "base/config.json").is_file()


def test_what_is_not_on_the_hub_is_an_error_without_the_token(hub):
    with pytest.raises(PlanError, match=r"hub:lab/none: dataset lab/none was not fetched; .*HF_TOKEN") as refused:
        download("hub:lab/none", "dataset", None)
    assert SECRET not in str(refused.value)
