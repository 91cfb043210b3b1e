"""`posttrain push hub` against a local stand-in of the hub's HTTP API."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest
from safetensors.torch import load
from typer.testing import CliRunner

from flows.cli import app
from flows.publishing.hub import push_to_hub
from learning.models.policy import load_policy, save_policy
from lineage.audit.log import read_entries
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.learning.models.test_gguf import make_policy

SECRET = "hf_a-token-of-nobody"


class Hub(ThreadingHTTPServer):
    """Repositories in memory; LFS objects by their sha256."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files, self.objects, self.tokens, self.created = {}, {}, set(), []
        self.refuse = None


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body, status=200):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.reply({"id": "lab/tiny", "sha": "0" * 40, "siblings": []})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[hashlib.sha256(content).hexdigest()] = content
        self.reply({})

    def do_POST(self):
        hub = self.server
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.refuse:
            self.reply({"error": f"no: {self.headers.get('Authorization')}"}, hub.refuse)
        elif self.path == "/api/repos/create":
            hub.created.append(json.loads(content))
            self.reply({"url": f"{hub.url}/lab/tiny"})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(content)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in files
            ]
            self.reply({"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(content)["objects"]
            actions = [{**one, "actions": {"upload": {"href": f"{hub.url}/store/{one['oid']}"}}} for one in objects]
            self.reply({"transfer": "basic", "objects": actions})
        elif "/commit/" in self.path:
            for line in content.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.objects[value["oid"]]
            url = f"{hub.url}/lab/tiny/commit/{'1' * 40}"
            self.reply({"commitUrl": url, "commitOid": "1" * 40, "pullRequestUrl": None})
        else:
            self.reply({})


@pytest.fixture
def hub(monkeypatch, tmp_path):
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path / "lab"))
    with serve_hub(monkeypatch) as server:
        yield server


@contextmanager
def serve_hub(monkeypatch):
    """The stand-in, as the environment names it."""
    server = Hub()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    save_policy(make_policy("llama"), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.filterwarnings("ignore:Use .content:DeprecationWarning")  # huggingface_hub calls httpx so
def test_a_model_is_one_commit_with_its_card(hub, folder, tmp_path):
    result = CliRunner().invoke(app, ["push", "hub", str(folder), "lab/tiny"], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"{hub.url}/lab/tiny/commit/{'1' * 40}" in result.stdout.replace("\n", "")
    assert hub.tokens == {f"Bearer {SECRET}"}
    assert hub.created[0]["name"] == "tiny"
    assert hub.created[0].get("private") is True or hub.created[0].get("visibility") == "private"
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(hub.files)
    sent, kept = load(hub.files["model.safetensors"]), load_policy(folder).model.state_dict()
    assert all((sent[name] == kept[name]).all() for name in sent)
    *_, entry = read_entries(Layout(tmp_path / "lab"))
    assert (entry["action"], entry["facts"]["repository"]) == ("published", "lab/tiny")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "lab").rglob("*") if path.is_file())
    assert SECRET.encode() not in everything
    assert SECRET not in result.output


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_is_an_error_without_the_token(status, hub, folder, tmp_path):
    hub.refuse = status
    with pytest.raises(PlanError, match="was not uploaded") as caught:
        push_to_hub(Layout(tmp_path / "lab"), str(folder), "lab/tiny", public=False, max_shard_size="5GB")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert list((tmp_path / "lab").rglob("*.safetensors")) == []


def test_without_a_token_or_a_name_nothing_is_sent(hub, folder, tmp_path, monkeypatch):
    layout = Layout(tmp_path / "lab")
    with pytest.raises(PlanError, match="ORGANISATION/NAME"):
        push_to_hub(layout, str(folder), "tiny", public=False, max_shard_size="5GB")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PlanError, match="HF_TOKEN"):
        push_to_hub(layout, str(folder), "lab/tiny", public=False, max_shard_size="5GB")
    assert not hub.tokens


def test_a_dvc_remote_takes_one_target(hub):
    result = CliRunner().invoke(app, ["push", "cold_start", "lab/tiny"])
    assert isinstance(result.exception, PlanError)
