"""The Compose and Kubernetes manifests of tools/clusters are valid, hold no secrets, and use the files of the proof.

No container is started here. The tests of this folder start what the manifests start as processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from engines import FILES
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import umqtt

COMPOSE = yaml.safe_load((FILES / "compose.yaml").read_text())
OBJECTS = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))
KUSTOMIZATION = yaml.safe_load((FILES / "kustomization.yaml").read_text())
# The files that the proof uses, and what it sets in a second file of RabbitMQ and in HAProxy's environment.
PROOF = (Path(__file__).with_name("engines.py")).read_text()
PROVED = set(re.findall(r'FILES / "rabbitmq" / "([\w.]+)"\)', PROOF)) | {"haproxy.cfg"}
CONF = dict(re.findall(r"^([\w.]+) = (.*)$", (FILES / "rabbitmq" / "rabbitmq.conf").read_text(), re.MULTILINE))
BALANCER_ENVIRONMENT = set(re.findall(r'"\$\{(\w+)\}"', (FILES / "haproxy" / "haproxy.cfg").read_text()))
PAGE = (FILES.parents[1] / "docs" / "engines.md").read_text()


def named(kind: str, name: str) -> dict:
    """Return this object of kubernetes.yaml."""
    return next(one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name))


def pod_labels(kind: str, name: str) -> dict:
    return named(kind, name)["spec"]["template"]["metadata"]["labels"]


def containers() -> dict[str, dict]:
    """Return the containers of all pods, by name."""
    pods = [one["spec"]["template"]["spec"] for one in OBJECTS if "template" in one.get("spec", {})]
    return {each["name"]: each for spec in pods for each in spec["containers"]}


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_specification_takes_the_file() -> None:
    """Planted: secret instead of secrets."""
    run("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILES / "compose.yaml"))


# The oldest version that is still maintained, and the newest that the validator knows.
@pytest.mark.parametrize("version", ["1.33", "newest"])
@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_kubernetes_takes_each_object(one: dict, version: str) -> None:
    """Planted: volumeMount instead of volumeMounts."""
    import kubernetes_validate  # here, because each worker imports each test, and this takes three seconds

    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(one, newest if version == "newest" else version, strict=True)


def test_no_container_may_gain_rights_or_is_reached_from_elsewhere() -> None:
    """Planted: one container without the lines; no policy for the network."""
    specs = [one["spec"]["template"]["spec"] for one in OBJECTS if "template" in one.get("spec", {})]
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container.get("securityContext") == rights, container["name"]
    within, devices = named("NetworkPolicy", "within")["spec"], named("NetworkPolicy", "devices")["spec"]
    assert within["podSelector"] == {} and within["ingress"] == [{"from": [{"podSelector": {}}]}]
    assert devices["podSelector"] == {"matchLabels": pod_labels("Deployment", "balancer")}
    assert devices["ingress"] == [{"ports": [{"port": 8883}]}]
    assert all(one.get("security_opt") == ["no-new-privileges:true"] for one in COMPOSE["services"].values())
    assert COMPOSE["services"]["collector"]["cap_drop"] == ["ALL"]


def test_the_containers_run_the_files_that_the_proof_runs() -> None:
    """Planted: a separate copy of haproxy.cfg for one of them; a file that the proof reads is in no container."""
    for file in [one["file"] for one in COMPOSE["configs"].values()] + [
        file for one in KUSTOMIZATION["configMapGenerator"] for file in one.get("files", ())
    ]:
        assert (FILES / file).is_file(), file
    secret = {"definitions.json"}
    compose = {Path(one["file"]).name for one in COMPOSE["configs"].values()}
    kubernetes = {Path(file).name for one in KUSTOMIZATION["configMapGenerator"] for file in one.get("files", ())}
    assert compose == kubernetes == (PROVED | {"enabled_plugins"}) - secret


def test_balancer_and_collector_know_every_node() -> None:
    """Planted: NODE3 is left out."""
    compose = COMPOSE["services"]["balancer"]["environment"]
    kubernetes = {one["name"]: one["value"] for one in containers()["haproxy"]["env"]}
    ports = {int(CONF["mqtt.listeners.ssl.default"])}
    services = {f"node-{i}" for i in range(3)}
    for environment, hosts, command in (
        (compose, {"n1", "n2", "n3"}, COMPOSE["services"]["collector"]["command"]),
        (kubernetes, services, containers()["collector"]["args"]),
    ):
        assert environment.keys() == BALANCER_ENVIRONMENT
        nodes = {address for name, address in environment.items() if name != "BIND"}
        assert nodes == {f"{host}:{port}" for host in hosts for port in ports}
        [urls] = [one.removeprefix("--broker=") for one in command if one.startswith("--broker=")]
        assert {url.removeprefix("mqtts://") for url in urls.split(",")} == nodes
    assert {name for name in services if named("Service", name)["spec"]["ports"][0]["port"] in ports} == services


@pytest.mark.parametrize("name", ["collector", "ingest"])
def test_both_run_the_same_command_and_umqtt_takes_it(name: str) -> None:
    """Planted: --password-from instead of --password-file."""
    compose, kubernetes = COMPOSE["services"][name]["command"], containers()[name]["args"]

    def without_places(arguments: list[str]) -> list[str]:
        return [re.sub(r"/run/secrets/umqtt/", "/run/secrets/", one) for one in arguments if "--broker=" not in one]

    assert without_places(compose) == without_places(kubernetes)
    for arguments in (compose, kubernetes):
        command: click.Command = umqtt
        while isinstance(command, click.Group):
            name, *arguments = arguments
            context = command.make_context("umqtt", ["--help"], resilient_parsing=True)
            found = command.get_command(context, name)
            assert found is not None
            command = found
        # Secrets and volumes exist only in the container.
        there = [re.sub("=/run/secrets/.*", f"={__file__}", one) for one in arguments]
        command.make_context(name, there)


def test_no_secret_is_in_a_file_and_the_page_names_each() -> None:
    """Planted: RABBITMQ_ERLANG_COOKIE in the environment."""
    files = {one["file"] for one in COMPOSE["secrets"].values()}
    assert {Path(file).parent.name for file in files} == {"secrets"}
    ignored = (FILES.parents[1] / ".gitignore").read_text().splitlines()
    assert "/tools/clusters/secrets/" in ignored
    assert "Secret" not in {one["kind"] for one in OBJECTS} and "secretGenerator" not in KUSTOMIZATION
    for text in (FILES / "compose.yaml", FILES / "kubernetes.yaml", FILES / "Dockerfile"):
        assert not re.search("PASSWORD|COOKIE|TOKEN", text.read_text()), text
    in_kubernetes = set(re.findall(r"'key': '([\w.-]+)', 'path': '\1'", str(OBJECTS)))
    # On Kubernetes the object store is the user's own.
    assert {Path(file).name for file in files} - {"store.env"} <= in_kubernetes
    assert [file for file in files if f"`{Path(file).name}`" not in PAGE] == []
