"""The manifests of deploy/kubernetes: valid by Kubernetes' own schemas, and everything that is referred to exists."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
DOCUMENTS = [
    (path.name, document)
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
OF = {(document["kind"], document["metadata"]["name"]): document for _, document in DOCUMENTS}
PODS = {name: document["spec"]["template"] for (kind, name), document in OF.items() if kind == "Deployment"}
CONTAINERS = [
    pytest.param(pod, container, id=f"{name}/{container['name']}")
    for name, pod in PODS.items()
    for container in pod["spec"]["containers"]
]
README = (ROOT / "deploy" / "README.md").read_text()


@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
@pytest.mark.parametrize(
    ("file", "document"), [pytest.param(f, d, id=f"{d['kind']}/{d['metadata']['name']}") for f, d in DOCUMENTS]
)
def test_every_document_is_valid(file, document, version):
    kubernetes_validate.validate(document, version, strict=True)
    if document["kind"] != "Namespace":
        assert document["metadata"]["namespace"] == "posttrain"


def test_the_schemas_would_refuse_a_slip():
    wrong = yaml.safe_load(yaml.safe_dump(OF["Deployment", "prefect"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="redinessProbe"):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_every_file_is_applied():
    assert set(KUSTOMIZATION["resources"]) == {file for file, _ in DOCUMENTS}


def ports(pod):
    return {p["name"]: p["containerPort"] for c in pod["spec"]["containers"] for p in c.get("ports", [])}


def test_services_lead_to_pods_and_addresses_to_services():
    open_at = {}
    for (kind, name), service in OF.items():
        if kind != "Service":
            continue
        wanted = service["spec"]["selector"].items()
        pods = [pod for pod in PODS.values() if wanted <= pod["metadata"]["labels"].items()]
        assert len(pods) == 1, name
        for port in service["spec"]["ports"]:
            assert ports(pods[0])[port["targetPort"]] == port["port"], name
        open_at[name] = {port["port"] for port in service["spec"]["ports"]}
    settings = OF["ConfigMap", "posttrain-settings"]["data"]
    named = re.findall(r"http://([a-z-]+):(\d+)", " ".join(settings.values()))
    named += re.findall(r"\b(ray-head):(\d+)", (FOLDER / "ray.yaml").read_text() + (FOLDER / "worker.yaml").read_text())
    assert {host for host, _ in named} == {"prefect", "mlflow", "ray-head"}
    for host, port in named:
        assert int(port) in open_at[host], host


@pytest.mark.parametrize("name", PODS)
def test_a_deployment_selects_its_own_pods(name):
    deployment = OF["Deployment", name]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert labels["app.kubernetes.io/name"] == name


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_a_container_refers_to_what_exists(pod, container):
    named = ports(pod)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "httpGet" in container.get(probe, {}):
            assert container[probe]["httpGet"]["port"] in named
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    for volume in volumes.values():
        if claim := volume.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in OF
    for source in container["envFrom"]:
        assert ("ConfigMap", source["configMapRef"]["name"]) in OF
    for variable in container.get("env", []):
        if secret := variable.get("valueFrom", {}).get("secretKeyRef"):
            made = re.search(rf"create secret generic {secret['name']} (?:[^\n]*\\\n)*[^\n]*", README)
            assert made, secret
            assert f"--from-literal={secret['key']}=" in made[0]


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_a_container_is_confined_and_says_what_it_needs(pod, container):
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert "readinessProbe" in container
    gpus = container["resources"]["requests"].get("nvidia.com/gpu", "0")
    asked = [word for word in container["command"] if word.startswith("--num-gpus=")]
    assert asked in ([], [f"--num-gpus={gpus}"])


def test_no_secret_is_in_a_file_and_the_image_is_of_this_version():
    assert not [key for key in OF if key[0] == "Secret"]
    text = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    assert not re.search(r"://[^/\s]*:[^/\s]*@", text)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall(r"image: (\S+)", text)) == {f"posttrain:{version}"}
    assert KUSTOMIZATION["images"][0]["newTag"] == version
    assert f"posttrain:{version}" in (ROOT / "deploy" / "Containerfile").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["prefect server start", "prefect worker start", "mlflow server", "ray start", "ray health-check"]
)
def test_the_programs_know_the_options(program):
    commands = [param.values[1]["command"] for param in CONTAINERS]
    commands += [param.values[1]["readinessProbe"].get("exec", {"command": []})["command"] for param in CONTAINERS]
    words = program.split()
    mine = [command[len(words) :] for command in commands if command[: len(words)] == words]
    assert mine
    options = {word.partition("=")[0] for command in mine for word in command if word.startswith("--")}
    done = subprocess.run(
        [Path(sys.executable).with_name(words[0]), *words[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
    )
    assert {option for option in options if option not in done.stdout} == set()
