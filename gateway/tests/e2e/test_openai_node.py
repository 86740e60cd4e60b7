"""The official Node client against two real engines behind the gateway. The checks themselves are in node/sdk.mjs."""
import json
import os
import re
import subprocess

import pytest

from support.llama import here

SCRIPT = here / "node" / "sdk.mjs"
TOOLS = here.parents[2] / ".venv-e2e" / "tools" / "node"
# Read from the source, so that collecting the tests does not start Node.
NAMES = re.findall(r"^  async '([^']+)'\(\)", SCRIPT.read_text(), re.M)


@pytest.fixture(scope="module")
def results(gateway_of_zoo):
    environment = {
        **os.environ, "E2E_NODE_TOOLS": str(TOOLS), "OPENAI_BASE_URL": gateway_of_zoo.url + "/v1", "OPENAI_API_KEY": gateway_of_zoo.key
    }
    ran = subprocess.run(["node", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return {line["name"]: line["problem"] for line in map(json.loads, ran.stdout.splitlines())}


def test_every_check_ran(results):
    assert len(NAMES) > 10 and set(results) == set(NAMES)


@pytest.mark.parametrize("name", NAMES, ids=[name.replace(" ", "_") for name in NAMES])
def test_node(results, name):
    assert results[name] is None, results[name]
