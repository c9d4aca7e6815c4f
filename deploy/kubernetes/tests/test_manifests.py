"""Checks the manifests offline: with the published schemas, their references, and the real programs.

Run with the Python of scripts/test: `.tools-venv/bin/python -m unittest discover deploy/kubernetes/tests`. CEL rules of custom
resources are not evaluated, and no cluster runs here.
"""

import copy
import json
import re
import shutil
import ssl
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from manifests import (
    ROOT,
    Manifest,
    deployed,
    documented,
    environment,
    errors,
    of_kind,
    options,
    page,
    pods,
    port_names,
    program,
    references,
    selected,
    training,
)

#: Variables of tokens, which are not in --help (docs/reference/access.md).
TOKENS = {"EVENSTEP_TOKEN", "EVENSTEP_TOKEN_FILE"}


def named(kind: str, name: str) -> Manifest:
    return next(manifest for manifest in of_kind(kind, deployed()) if manifest["metadata"]["name"] == name)


def pod_of(kind: str, name: str) -> Manifest:
    return next(pods(named(kind, name)))


@unittest.skipUnless(shutil.which("kubectl"), "kubectl, which renders kustomizations, is not installed")
class Manifests(unittest.TestCase):
    def test_schemas(self) -> None:
        for manifest in [*deployed(), *training()]:
            with self.subTest(f"{manifest['kind']} {manifest['metadata']['name']}"):
                self.assertEqual(errors(manifest), [])

    def test_planted_faults_are_found(self) -> None:
        faults: list[tuple[str, tuple[str | int, ...], Any]] = [
            ("ClusterTrainingRuntime", ("spec", "mlPolicy", "numNode"), 2),
            ("TrainJob", ("spec", "trainer", "numNodes"), "four"),
            ("TrainJob", ("spec", "runtimePatches", 0, "managers"), "x"),
            ("JobSet", ("spec", "failurePolicy", "maxRestart"), 1),
            ("PyTorchJob", ("spec", "pytorchReplicaSpecs", "Worker", "replica"), 1),
            ("ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "1s"),
            ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "paths"), "/"),
            ("DaemonSet", ("spec", "template", "spec", "hostPid"), True),
            ("StatefulSet", ("spec", "replicas"), "two"),
            ("NetworkPolicy", ("spec", "ingres"), []),
            ("PodDisruptionBudget", ("spec", "availableMin"), 1),
        ]
        for kind, keys, value in faults:
            manifest = copy.deepcopy(of_kind(kind, [*deployed(), *training()])[0])
            place: Any = manifest
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value
            with self.subTest(f"{kind} {keys[-1]}"):
                self.assertTrue(any(str(keys[-1]) in error for error in errors(manifest)), errors(manifest))

    def test_secrets_and_config_maps_are_those_of_the_page(self) -> None:
        read = {reference for manifest in [*deployed(), *training()] for pod in pods(manifest) for reference in references(pod)}
        [endpoint] = of_kind("ServiceMonitor", deployed())[0]["spec"]["endpoints"]
        credentials, authority = endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["configMap"]
        read |= {("Secret", credentials["name"], credentials["key"]), ("ConfigMap", authority["name"], authority["key"])}
        self.assertEqual(read, documented())

    def test_selectors_match_pods_and_ports(self) -> None:
        for service in of_kind("Service", deployed()):
            matched = selected(service["spec"]["selector"], deployed())
            self.assertTrue(matched, service["metadata"]["name"])
            for port, pod in [(port, pod) for port in service["spec"]["ports"] for pod in matched]:
                self.assertEqual(port_names(pod)[port["targetPort"]], port["port"])
        for kind in ("StatefulSet", "DaemonSet"):
            for manifest in of_kind(kind, deployed()):
                self.assertIn(next(pods(manifest)), selected(manifest["spec"]["selector"]["matchLabels"], [manifest]))
        for manifest in of_kind("StatefulSet", deployed()):
            service = named("Service", manifest["spec"]["serviceName"])
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertEqual(selected(service["spec"]["selector"], deployed()), [next(pods(manifest))])
        for budget in of_kind("PodDisruptionBudget", deployed()):
            self.assertTrue(selected(budget["spec"]["selector"]["matchLabels"], deployed()))
        # The two kinds of nodes have different agents.
        sets = of_kind("DaemonSet", deployed())
        for manifest in sets:
            self.assertEqual(len(selected(manifest["spec"]["selector"]["matchLabels"], sets)), 1)

    def test_network_policies_name_pods_and_ports_that_exist(self) -> None:
        for policy in of_kind("NetworkPolicy", deployed()):
            own = selected(policy["spec"]["podSelector"]["matchLabels"], deployed())
            self.assertTrue(own, policy["metadata"]["name"])
            for rule in policy["spec"]["ingress"]:
                for port, pod in [(port["port"], pod) for port in rule["ports"] for pod in own]:
                    self.assertIn(port, port_names(pod))
            for rule in [*policy["spec"]["ingress"], *policy["spec"].get("egress", [])]:
                for peer in [*rule.get("from", []), *rule.get("to", [])]:
                    if "podSelector" in peer:
                        self.assertTrue(selected(peer["podSelector"]["matchLabels"], deployed()), peer)
            for rule in policy["spec"].get("egress", []):
                for peer in rule.get("to", []):
                    targets = selected(peer["podSelector"]["matchLabels"], deployed())
                    served = {number for pod in targets for number in port_names(pod).values()}
                    self.assertLessEqual({port["port"] for port in rule["ports"]}, served)

    def test_monitors_scrape_ports_that_exist(self) -> None:
        [monitor] = of_kind("ServiceMonitor", deployed())
        [service] = [
            service for service in of_kind("Service", deployed())
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"].get("labels", {}).items()
        ]  # fmt: skip
        self.assertEqual([port["name"] for port in service["spec"]["ports"]], [monitor["spec"]["endpoints"][0]["port"]])
        [monitor] = of_kind("PodMonitor", deployed())
        agents = selected(monitor["spec"]["selector"]["matchLabels"], deployed())
        self.assertEqual(len(agents), 2)
        for pod in agents:
            self.assertIn(monitor["spec"]["podMetricsEndpoints"][0]["port"], port_names(pod))

    def test_options_and_variables_exist(self) -> None:
        [predictor] = pod_of("StatefulSet", "evenstep-predictor")["spec"]["containers"]
        [agent] = pod_of("DaemonSet", "evenstep-agent")["spec"]["containers"]
        python = set(re.findall(r"`(EVENSTEP_[A-Z_]+)`", (ROOT / "docs/reference/python.md").read_text())) | TOKENS
        for container, known in (
            (predictor, options("evenstep-predictor", "serve")),
            (agent, options("evenstep-agent") | TOKENS),
            *((pod["spec"]["containers"][0], python) for manifest in training() for pod in pods(manifest)),
        ):
            used = {name for name in environment(container) if name.startswith("EVENSTEP_")}
            used |= {argument for argument in container.get("args", []) if argument.startswith("--")}
            self.assertTrue(used)
            self.assertLessEqual(used, known)

    def test_clients_name_each_predictor_and_its_port(self) -> None:
        manifest = named("StatefulSet", "evenstep-predictor")
        name, service = manifest["metadata"]["name"], named("Service", manifest["spec"]["serviceName"])
        suffix = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{service['spec']['ports'][0]['port']}"
        urls = [f"https://{name}-{number}.{suffix}" for number in range(manifest["spec"]["replicas"])]
        own = environment(next(pods(manifest))["spec"]["containers"][0])["EVENSTEP_URL"]
        self.assertEqual([own.replace("$(POD_NAME)", f"{name}-{number}") for number in range(len(urls))], urls)
        for manifest in [*of_kind("DaemonSet", deployed()), *training()]:
            for pod in pods(manifest):
                server = environment(pod["spec"]["containers"][0]).get("EVENSTEP_SERVER")
                self.assertEqual(server and server.split(","), urls, manifest["kind"])
        monitor = of_kind("ServiceMonitor", deployed())[0]
        self.assertIn(f"https://{monitor['spec']['endpoints'][0]['tlsConfig']['serverName']}:7117", urls)
        self.assertIn(f"DNS:*.{suffix.partition(':')[0]}", page(), "the certificate of the page has these names")

    def test_ranks_find_the_socket_of_their_agent(self) -> None:
        def folder(pod: Manifest, path: str) -> str:
            mounts = pod["spec"]["containers"][0]["volumeMounts"]
            mount = next(mount for mount in mounts if path.startswith(mount["mountPath"] + "/"))
            volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
            return path.replace(mount["mountPath"], volume["hostPath"]["path"], 1)

        for name in ("evenstep-agent", "evenstep-agent-gpu"):
            agent = pod_of("DaemonSet", name)
            self.assertTrue(agent["spec"]["hostPID"])
            listening = folder(agent, environment(agent["spec"]["containers"][0])["EVENSTEP_AGENT_SOCKET"])
            ranks = [pod for manifest in training() for pod in pods(manifest) if manifest["kind"] != "TrainJob"]
            for rank in ranks:
                agent_url = environment(rank["spec"]["containers"][0])["EVENSTEP_AGENT"]
                self.assertEqual(folder(rank, agent_url.removeprefix("unix://")), listening)

    def test_the_agents_differ_only_in_their_nodes_and_gpus(self) -> None:
        plain, gpu = (copy.deepcopy(named("DaemonSet", name)) for name in ("evenstep-agent", "evenstep-agent-gpu"))
        spec = gpu["spec"]["template"]["spec"]
        self.assertEqual(spec.pop("runtimeClassName"), "nvidia")
        added = [entry["name"] for entry in spec["containers"][0]["env"][-2:]]
        self.assertEqual(added, ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"])
        del spec["containers"][0]["env"][-2:]
        text = json.dumps(gpu).replace("evenstep-agent-gpu", "evenstep-agent")
        text = text.replace('"evenstep/gpu": "true"', '"evenstep/gpu": "false"').replace('"In"', '"NotIn"')
        self.assertEqual(json.loads(text), plain)

    def test_probes_and_scrapes_are_routes_of_the_programs(self) -> None:
        def paths(pod: Manifest) -> set[str]:
            container = pod["spec"]["containers"][0]
            return {probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}

        predictor = pod_of("StatefulSet", "evenstep-predictor")
        agent = pod_of("DaemonSet", "evenstep-agent")
        scraped = of_kind("PodMonitor", deployed())[0]["spec"]["podMetricsEndpoints"][0]["path"]
        with tempfile.TemporaryDirectory() as folder:
            certificate = self_signed(Path(folder))
            variables = environment(predictor["spec"]["containers"][0])
            files = {variables["EVENSTEP_TLS_CERT"]: certificate[0], variables["EVENSTEP_TLS_KEY"]: certificate[1]}
            started = [
                *(program("evenstep-predictor"), "serve", "--listen=127.0.0.1:0"),
                *("--auth=required", f"--store=sqlite://{folder}/evenstep.db"),
                *("--tls-cert", files["/etc/evenstep/tls/tls.crt"], "--tls-key", files["/etc/evenstep/tls/tls.key"]),
            ]
            with running(started, folder) as process:
                url = next(line for line in process.stdout if "listening on" in line).partition("on ")[2].strip()
                for path in paths(predictor):
                    self.assertEqual(status(f"{url}{path}"), 200, path)
            flags = ["--server=off", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", f"--socket={folder}/agent.sock"]
            with running([program("evenstep-agent"), *flags], folder) as process:
                address = json.loads(next(line for line in process.stdout if line.startswith("{")))["metrics"]
                for path in {*paths(agent), scraped}:
                    self.assertEqual(status(f"http://{address}{path}"), 200, path)


def self_signed(folder: Path) -> tuple[str, str]:
    """Makes a certificate, as the page does, and returns the files of certificate and key."""
    files = str(folder / "tls.crt"), str(folder / "tls.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
         "-subj", "/CN=predictor", "-addext", "subjectAltName=DNS:*.evenstep-predictor.evenstep.svc",
         "-keyout", files[1], "-out", files[0]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


class running:
    """A program that ends with the block."""

    def __init__(self, command: list[Any], folder: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)

    def __enter__(self) -> Any:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def status(url: str) -> int:
    """Returns the status of a URL; the kubelet does not check certificates either."""
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(url, timeout=60, context=context if url.startswith("https") else None) as response:
        return response.status


if __name__ == "__main__":
    unittest.main()
