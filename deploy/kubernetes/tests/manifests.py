"""The manifests, and what they refer to."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from gzip import decompress
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
#: The newest version of Kubernetes whose schemas kubernetes-validate has.
KUBERNETES = "1.37"

Manifest = dict[str, Any]


@cache
def deployed() -> list[Manifest]:
    """Returns what the kustomization deploys together with all components, as kubectl renders it."""
    with tempfile.TemporaryDirectory() as site:
        # kubectl accepts only relative paths, without links.
        base = os.path.relpath(FOLDER, os.path.realpath(site))
        components = [f"{base}/monitoring", f"{base}/postgres"]
        whole = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "namespace": "evenstep", "resources": [base], "components": components,
        }  # fmt: skip
        (Path(site) / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        rendered = subprocess.run(["kubectl", "kustomize", site], capture_output=True, text=True, check=False)
    if rendered.returncode:
        raise AssertionError(rendered.stderr)
    return list(yaml.safe_load_all(rendered.stdout))


@cache
def training() -> list[Manifest]:
    """Returns the runtime and the examples of jobs."""
    files = sorted((FOLDER / "training").glob("*.yaml"))
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str, manifests: list[Manifest]) -> list[Manifest]:
    """Returns the manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


@cache
def _custom() -> dict[str, Draft202012Validator]:
    packed = json.loads(decompress(Path(__file__).with_name("schemas.json.gz").read_bytes()))
    return {name: Draft202012Validator(schema) for name, schema in packed.items()}


def errors(manifest: Manifest) -> list[str]:
    """Returns what breaks the published schema of a manifest; an unknown field does."""
    custom = _custom().get(f"{manifest['apiVersion']} {manifest['kind']}")
    if custom:
        return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in custom.iter_errors(manifest)]
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return [str(error)]
    return []


def pods(manifest: Any) -> Iterator[Manifest]:
    """Yields all templates of pods in a manifest: mappings whose `spec` has containers."""
    if isinstance(manifest, dict):
        spec = manifest.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield manifest
        for value in manifest.values():
            yield from pods(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from pods(value)


def environment(container: Manifest) -> dict[str, Any]:
    """Returns the variables of a container: a text, or the reference from which the value comes."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", [])}


def selected(selector: dict[str, str], manifests: list[Manifest]) -> list[Manifest]:
    """Returns the pods whose labels a selector matches."""
    found = [pod for manifest in manifests for pod in pods(manifest)]
    return [pod for pod in found if selector.items() <= pod.get("metadata", {}).get("labels", {}).items()]


def port_names(pod: Manifest) -> dict[str, int]:
    """Returns the ports of a pod by name."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports", []))
    return {port["name"]: port["containerPort"] for port in ports}


@cache
def page() -> str:
    """Returns the page of the documentation."""
    return (ROOT / "docs/how-to/kubernetes.md").read_text()


@cache
def documented() -> set[tuple[str, str, str]]:
    """Returns the kind, name and key of each Secret and ConfigMap that the page creates."""
    created = re.findall(r"kubectl [^\n]*create (secret generic|configmap) ([\w-]+)([^\n]*)", page().replace("\\\n", ""))
    return {
        ("Secret" if kind.startswith("secret") else "ConfigMap", name, key)
        for kind, name, options in created
        for key in re.findall(r"--from-(?:literal|file)=([\w.-]+)=", options)
    }


def references(pod: Manifest) -> set[tuple[str, str, str]]:
    """Returns the kind, name and key of each Secret and ConfigMap that a pod reads; the key `` for a whole volume."""
    found = set()
    for container in pod["spec"]["containers"]:
        for source in environment(container).values():
            if isinstance(source, dict) and "secretKeyRef" in source:
                found.add(("Secret", source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]))
        files = {name: text for name, text in environment(container).items() if isinstance(text, str) and text[:1] == "/"}
        for file in files.values():
            found |= {reference for reference in [_mounted(pod, container, file)] if reference}
    return found


def _mounted(pod: Manifest, container: Manifest, file: str) -> tuple[str, str, str] | None:
    """Returns the Secret or ConfigMap that has a file; None if it is in a folder of the node."""
    mounts = [mount for mount in container["volumeMounts"] if Path(mount["mountPath"]) in [Path(file), *Path(file).parents]]
    if not mounts:
        raise AssertionError(f"{file}: no volume is mounted there")
    # A claim of a StatefulSet has no entry here.
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    volume = volumes.get(mounts[0]["name"], {})
    key = str(Path(file).relative_to(mounts[0]["mountPath"]))
    if "secret" in volume:
        return "Secret", volume["secret"]["secretName"], key
    return ("ConfigMap", volume["configMap"]["name"], key) if "configMap" in volume else None


def program(name: str) -> Path:
    """Returns the path of a program of the project."""
    variable = name.upper().replace("-", "_")
    return Path(os.environ.get(variable) or ROOT / "target/debug" / name)


@cache
def options(*command: str) -> frozenset[str]:
    """Returns the options and variables that a program's --help names."""
    told = subprocess.run([program(command[0]), *command[1:], "--help"], capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"--[a-z][a-z-]+|EVENSTEP_[A-Z_]+", told.stdout))
