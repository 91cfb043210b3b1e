"""deploy/kuberay: the RayCluster's pods are valid by Kubernetes' schemas, say what they hold, and replace Ray's own."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kuberay"
CLUSTER = yaml.safe_load((FOLDER / "raycluster.yaml").read_text())
SPEC = CLUSTER["spec"]
GROUPS = {"head": SPEC["headGroupSpec"]} | {group["groupName"]: group for group in SPEC["workerGroupSpecs"]}
KNOWN = {
    "spec": {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "worker": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Keys of ray.io/v1 that are used here; the operator's schema was consulted for them."""


@pytest.mark.parametrize("name", GROUPS)
def test_pods_are_valid(name):
    template = GROUPS[name]["template"]
    labels = template["metadata"]["labels"]
    pods = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "posttrain"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    kubernetes_validate.validate(pods, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", GROUPS)
def test_pods_are_confined_and_have_the_resources_that_ray_is_given(name):
    group = GROUPS[name]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # Without probes of ours the operator adds some that need Ray's dashboard.
    assert {"readinessProbe", "livenessProbe"} <= set(container)
    asked, ray_params = container["resources"]["requests"], group["rayStartParams"]
    if name != "head":
        assert (asked["cpu"], asked.get("nvidia.com/gpu", "0")) == (ray_params["num-cpus"], ray_params["num-gpus"])
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert all(isinstance(value, str) for value in ray_params.values())


def test_its_keys_are_the_operators():
    assert set(SPEC) == KNOWN["spec"]
    assert set(GROUPS["head"]) == KNOWN["head"]
    assert all(set(group) == KNOWN["worker"] for name, group in GROUPS.items() if name != "head")
    assert (CLUSTER["apiVersion"], CLUSTER["kind"]) == ("ray.io/v1", "RayCluster")


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (FOLDER / "raycluster.yaml").read_text() + (FOLDER / "kustomization.yaml").read_text()
    assert set(re.findall(r"image: posttrain:(\S+)", text)) == {version}
    assert set(re.findall(r"newTag: (\S+)", text)) == {version}
    assert f"ray=={SPEC['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_operators_cluster_replaces_the_deployments():
    done = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=True)
    made = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout)}
    assert ("RayCluster", "posttrain") in made
    assert not [name for kind, name in made if kind == "Deployment" and name.startswith("ray-")]
    assert ("Service", "ray-head") not in made
    worker = yaml.safe_dump(made["Deployment", "worker"])
    # The operator names the head's service after the cluster.
    assert "ray-head:6379" not in worker
    assert worker.count("posttrain-head-svc:6379") == 4
    others = {kind for kind, _ in made} - {"RayCluster", "Deployment"}
    assert {"Namespace", "NetworkPolicy", "ConfigMap", "PersistentVolumeClaim"} <= others
