"""What an editor says: the YAML language server itself, over its protocol, on recipes with the schema line."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from schemas.pages.editor_schema import make_editor_schema

ROOT = Path(__file__).parent.parent.parent.parent
SERVER = os.environ.get("YAML_LANGUAGE_SERVER") or shutil.which("yaml-language-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="no yaml-language-server: npm install -g yaml-language-server")


class Editor:
    """A client that opens files and waits for their diagnostics."""

    def __init__(self):
        self.process = subprocess.Popen([SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.send("initialize", {"processId": None, "rootUri": None, "capabilities": {}}, id=1)
        self.send("initialized", {})

    def send(self, method, params, **more):
        self.write({"method": method, "params": params, **more})

    def write(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def read(self):
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self.process.stdout.read(length))

    def diagnostics(self, path):
        opened = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": path.read_text()}
        self.send("textDocument/didOpen", {"textDocument": opened})
        while True:
            message = self.read()
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == path.as_uri():
                return message["params"]["diagnostics"]
            if "id" in message and "method" in message:  # the server asks; nothing here has settings of its own
                items = message.get("params", {}).get("items", [])
                self.write({"id": message["id"], "result": [None] * len(items)})


@pytest.fixture(scope="module")
def editor():
    client = Editor()
    yield client
    client.process.kill()
    client.process.wait()
    client.process.stdin.close()
    client.process.stdout.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the schema, as `make` and `posttrain init` put it beside recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "recipe.schema.json").write_text(json.dumps(make_editor_schema()))
    return folder


@pytest.mark.timeout(60)
def test_the_shipped_recipe_has_no_diagnostics(editor, folder):
    shutil.copy(ROOT / "recipes/quickstart.yaml", folder)
    assert editor.diagnostics(folder / "quickstart.yaml") == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("learning_rate: 2e-4", "learning_rat: 2e-4", "learning_rat"),
        ("kind: curate", "kind: currate", "Valid values"),
        ("error_rate: 0.25", "error_rat: 0.25", "error_rat"),
        ("num_generations: 4", "num_generations: four", "Incorrect type"),
    ],
)
def test_a_mistake_is_marked_where_it_is(editor, folder, good, bad, message):
    text = (ROOT / "recipes/quickstart.yaml").read_text().replace(good, bad, 1)
    recipe = folder / f"{bad.partition(':')[0]}_{len(bad)}.yaml"
    recipe.write_text(text)
    diagnostics = editor.diagnostics(recipe)
    stage_start = text.rfind("\n\n", 0, text.index(bad))
    first, line = text[:stage_start].count("\n"), text[: text.index(bad)].count("\n")
    assert diagnostics, bad
    assert all(first <= d["range"]["start"]["line"] <= line for d in diagnostics), diagnostics
    assert any(message in json.dumps(d) for d in diagnostics), diagnostics
