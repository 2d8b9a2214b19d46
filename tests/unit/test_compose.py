"""docker-compose.yml holds together; no container engine runs in the tests."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
from typing import Any

import jsonschema
import pytest
import yaml

from octavo.cli.app import app
from tests.test_layout import LINKS, ROOT

DEFAULT = re.compile(r"\$\{([A-Z0-9_]+):-([^}]*)\}")
ADDRESS = re.compile(r"\b([a-z][a-z0-9-]*):(\d{2,5})\b")
ROLES = {"zk": 3, "bookie": 3, "broker": 2}

TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "services", "volumes"],
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["image", "healthcheck", "restart"],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string", "pattern": ":[^:]+$"},
                    "build": {"type": "string"},
                    "restart": {"enum": ["unless-stopped"]},
                    "command": {"anyOf": [{"type": "string"}, TEXTS]},
                    "profiles": TEXTS,
                    "volumes": TEXTS,
                    "ports": {
                        "type": "array",
                        "items": {"type": "string", "pattern": r"^(127\.0\.0\.1:)?\d+:\d+$"},
                    },
                    "environment": {
                        "type": "object",
                        "additionalProperties": {"type": "string"},
                    },
                    "depends_on": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "required": ["condition"],
                            "properties": {"condition": {"const": "service_healthy"}},
                        },
                    },
                    "healthcheck": {
                        "type": "object",
                        "required": ["test", "interval", "timeout", "retries"],
                        "additionalProperties": False,
                        "properties": {
                            "test": TEXTS,
                            "interval": {"type": "string", "pattern": r"^\d+s$"},
                            "timeout": {"type": "string", "pattern": r"^\d+s$"},
                            "retries": {"type": "integer", "minimum": 1},
                        },
                    },
                },
            },
        },
    },
}


def compose(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The file with its variables filled in as docker compose does it."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    values = environment or {}
    filled = DEFAULT.sub(lambda match: values.get(match[1], match[2]), text)
    assert "${" not in filled
    loaded: dict[str, Any] = yaml.safe_load(filled)
    return loaded


def chaos_environment() -> dict[str, str]:
    text = (ROOT / "chaos" / "links.env").read_text(encoding="utf-8")
    return dict(line.split("=", 1) for line in text.splitlines() if line and line[0] != "#")


def links() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((ROOT / "chaos" / "links.json").read_text())
    return loaded


def words(service: dict[str, Any]) -> list[str]:
    return shlex.split(service["command"])


def option(service: dict[str, Any], name: str) -> str:
    found = words(service)
    return found[found.index(name) + 1]


def metrics_ports(service: dict[str, Any]) -> list[int]:
    """Where its page for Prometheus is."""
    return [int(word[13:]) for word in words(service) if word.startswith("metrics_port=")]


def mounts(service: dict[str, Any]) -> dict[str, pathlib.Path]:
    """What of this repository a container sees, by the path it has there."""
    pairs = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
    return {inside: ROOT / outside for outside, inside, _ in pairs}


def listening(services: dict[str, Any]) -> set[tuple[str, int]]:
    """Every (service, port) on which something listens inside the network."""
    found: set[tuple[str, int]] = set()
    for name, service in services.items():
        role = name.partition("-")[0]
        if role == "zk":
            found.add((name, 2181))
        elif role in ("bookie", "broker"):
            found.add((name, int(option(service, "--port"))))
            found |= {(name, port) for port in metrics_ports(service)}
        if role == "bookie":
            found.add((name, int(option(service, "--control-port"))))
    found |= {("prometheus", 9090), ("grafana", 3000)}
    found |= {("toxiproxy", int(link["listen"].rpartition(":")[2])) for link in links()}
    return found


def test_shape() -> None:
    jsonschema.validate(compose(), SCHEMA)


def test_roles_are_all_there() -> None:
    services = compose()["services"]
    counts = {role: sum(name.startswith(role + "-") for name in services) for role in ROLES}
    assert counts == ROLES
    assert services["toxiproxy"]["profiles"] == ["chaos"]


@pytest.mark.parametrize("environment", [{}, chaos_environment()], ids=["plain", "chaos"])
def test_every_address_used_exists(environment: dict[str, str]) -> None:
    services = compose(environment)["services"]
    known = listening(services)
    used: set[tuple[str, int]] = set()
    for service in services.values():
        if isinstance(service.get("command"), str):
            used |= {(host, int(port)) for host, port in ADDRESS.findall(service["command"])}
    used.discard(("localhost", 7650))
    used.discard(("localhost", 7651))
    assert used
    assert used <= known, f"nobody listens at {sorted(used - known)}"


def test_advertised_bookie_addresses_exist_with_and_without_chaos() -> None:
    for environment in ({}, chaos_environment()):
        services = compose(environment)["services"]
        known = listening(services)
        for name, service in services.items():
            if name.startswith("bookie-"):
                host = option(service, "--advertised-host")
                assert (host, int(option(service, "--port"))) in known
                assert (host, int(option(service, "--control-port"))) in known


def test_links_lead_to_what_they_are_named_after() -> None:
    services = compose()["services"]
    known = listening(services)
    for link in links():
        host, _, port = link["upstream"].rpartition(":")
        assert (host, int(port)) in known
        assert link["name"].startswith(host)
        assert link["enabled"] is True
    listens = [link["listen"] for link in links()]
    assert len(set(listens)) == len(listens)


def test_published_ports_are_unique_and_match_what_clients_are_told() -> None:
    services = compose()["services"]
    published = [p for service in services.values() for p in service.get("ports", [])]
    assert len(set(published)) == len(published)
    for name, service in services.items():
        if name.startswith("broker-"):
            port = option(service, "--port")
            assert option(service, "--advertised-address") == f"localhost:{port}"
            assert service["ports"] == [f"{port}:{port}"]


def test_what_must_survive_has_a_named_volume_of_its_own() -> None:
    loaded = compose()
    named: list[str] = []
    for name, service in loaded["services"].items():
        volumes = [v.split(":") for v in service.get("volumes", []) if not v.startswith(".")]
        named += [volume for volume, _ in volumes]
        if name.startswith(("zk-", "bookie-")):
            assert "/data" in [path for _, path in volumes], f"{name} would forget its data"
    assert sorted(named) == sorted(set(named)) == sorted(loaded["volumes"])


def test_mounted_files_and_folders_exist_and_are_read_only() -> None:
    for name, service in compose()["services"].items():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                outside, _, mode = volume.split(":")
                assert (ROOT / outside).exists(), f"{name} mounts {outside}"
                assert mode == "ro"


def loaded(path: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def test_f171_prometheus_scrapes_every_server_where_it_has_its_page() -> None:
    services = compose()["services"]
    inside = mounts(services["prometheus"])
    (config_file,) = [
        word.partition("=")[2]
        for word in services["prometheus"]["command"]
        if word.startswith("--config.file=")
    ]
    config = loaded(inside[config_file])
    targets: dict[str, set[tuple[str, int]]] = {}
    for job in config["scrape_configs"]:
        for target in (one for static in job["static_configs"] for one in static["targets"]):
            host, _, port = target.rpartition(":")
            targets.setdefault(job["job_name"], set()).add((host, int(port)))
    for role in ("broker", "bookie"):
        pages = {
            (name, port)
            for name, service in services.items()
            if name.startswith(f"{role}-")
            for port in metrics_ports(service)
        }
        assert len(pages) == ROLES[role], "each has one page"
        assert targets.pop(f"octavo-{role}") == pages
    assert targets == {}
    folder = pathlib.PurePosixPath(config_file).parent
    for rules in config["rule_files"]:
        assert loaded(inside[str(folder / rules)])["groups"]


def test_f171_grafana_finds_its_data_and_the_dashboards() -> None:
    services = compose()["services"]
    grafana = services["grafana"]
    inside = mounts(grafana)
    provisioning = inside["/etc/grafana/provisioning"]
    (sources,) = (provisioning / "datasources").iterdir()
    (source,) = loaded(sources)["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"]
    scheme, _, address = source["url"].partition("://")
    host, _, port = address.partition(":")
    assert scheme == "http"
    assert (host, int(port)) in listening(services)
    assert host in grafana["depends_on"]
    (providers,) = (provisioning / "dashboards").iterdir()
    (provider,) = loaded(providers)["providers"]
    boards = [
        json.loads(file.read_text()) for file in inside[provider["options"]["path"]].iterdir()
    ]
    assert len({board["uid"] for board in boards}) == len(boards) == 5


def test_who_watches_is_there_only_when_asked_for_and_only_for_this_machine() -> None:
    services = compose()["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        assert services[name]["healthcheck"]["test"][:4] == ["CMD", "wget", "-q", "--spider"]
        assert (
            f":{services[name]['ports'][0].rpartition(':')[2]}/"
            in (services[name]["healthcheck"]["test"][4])
        )


def test_dependencies_are_services_with_health_checks() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for wanted in service.get("depends_on", {}):
            assert "healthcheck" in services[wanted], f"{name} waits for {wanted}"


def test_ids_are_unique_and_names_agree() -> None:
    services = compose()["services"]
    for name, service in services.items():
        if name.startswith(("bookie-", "broker-")):
            assert words(service)[0] == name.partition("-")[0]
            assert option(service, "--id") == name
            assert service["healthcheck"]["test"][:3] == ["CMD", "octavo", "probe"]
        if name.startswith("zk-"):
            assert service["environment"]["ZOO_MY_ID"] == name.rpartition("-")[2]
            assert f"server.{name[3:]}={name}:" in service["environment"]["ZOO_SERVERS"]


def test_every_command_line_parses() -> None:
    """The options exist: parsing stops at --help, before anything is started."""
    for service in compose()["services"].values():
        if isinstance(service.get("command"), str):
            assert app([*words(service), "--help"], standalone_mode=False) == 0


def test_dockerfile_copies_every_shipped_folder() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for folder in LINKS:
        if folder != "chaos":
            assert f"COPY {folder} {folder}\n" in text
    assert "COPY chaos" not in text
    assert "PYTHONSAFEPATH=1" in text
    assert 'ENTRYPOINT ["octavo"]' in text
    assert pathlib.Path(ROOT / ".dockerignore").read_text().startswith(".git\n")
