"""The Python client's own test-suite, once straight at the spec mock and once through the gateway: the same tests pass.

Its tests of calls that are no route of the gateway (stored completions, deleting a model) are the one difference; they are listed here
and must fail through the gateway, so that the list cannot hide anything else.
"""
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from support.gateway import KEY, replica
from support.llama import here
from support.specmock import SpecMock, tools

FILES = ["chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py"]
NOT_ROUTES = {"chat.test_completions": "retrieve|update|list|delete", "test_models": "delete"}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A copy of the client's tests that uses our key: its own has spaces in it, which no bearer token may have."""
    version = re.search(r"^openai==(.+)$", (here / "requirements.txt").read_text(), re.M)[1]
    copy = tmp_path_factory.mktemp("suite")
    source = tools / f"openai-{version}"
    shutil.copytree(source / "tests", copy / "tests")
    shutil.copy(source / "pyproject.toml", copy)
    conftest = copy / "tests" / "conftest.py"
    text = conftest.read_text()
    assert 'api_key = "My API Key"' in text
    conftest.write_text(text.replace('api_key = "My API Key"', f'api_key = "{KEY}"'))
    return copy


@pytest.fixture(scope="module")
def mock(shared_stage, tmp_path_factory):
    return shared_stage._join(SpecMock(tmp_path_factory.mktemp("mock")))


def models_of(suite):
    """Every model that those tests name: what the replica is stated to serve."""
    named = set()
    for file in FILES:
        text = (suite / "tests" / "api_resources" / file).read_text()
        named |= set(re.findall(r'model="([^"]+)"', text)) | set(re.findall(r'models\.\w+\(\s*"([^"]+)"', text))
        named |= set(re.findall(r'\.retrieve\(\s*"([^"]+)"', text)) if file == "test_models.py" else set()
    return sorted(named)


def run(suite, base_url, name):
    """Runs the suite; returns {test: passed}."""
    report = suite / f"{name}.xml"
    files = [f"tests/api_resources/{file}" for file in FILES]
    environment = {**os.environ, "TEST_API_BASE_URL": base_url, "OPENAI_MAX_RETRIES": "0"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", f"--junitxml={report}", *files]
    ran = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=300)
    assert report.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    cases = xml.parse(report).getroot().iter("testcase")
    return {
        f"{case.get('classname').removeprefix('tests.api_resources.')}::{case.get('name')}": all(
            child.tag not in ("failure", "error", "skipped") for child in case
        )
        for case in cases
    }


def is_route(test):
    """Whether a test's call is a route of the gateway. Tests of empty path parameters never send anything."""
    module, name = test.split(".Test")[0], test.split("::")[1]
    calls = NOT_ROUTES.get(module)
    return calls is None or "path_params" in name or not re.search(rf"_({calls})(_|\[|$)", name)


def test_the_same_tests_pass_with_and_without_the_gateway(shared_stage, suite, mock):
    stated = {"models": models_of(suite), "slots": 64, "context_tokens": 1_000_000, "dialect": "openai", "api_key": "env:E2E_PHONE_KEY"}
    gateway = shared_stage.gateway([replica(mock.url, **stated)])
    direct, through = run(suite, mock.url + "/v1", "direct"), run(suite, gateway.url + "/v1", "through")
    assert set(direct) == set(through)
    ours = {test for test in direct if is_route(test)}
    assert sum(direct[test] for test in ours) > 100, "the mock answers nearly nothing"
    lost = sorted(test for test in ours if direct[test] and not through[test])
    won = sorted(test for test in ours if through[test] and not direct[test])
    assert (lost, won) == ([], [])
    assert [test for test in set(direct) - ours if through[test]] == [], "a call that is no route of the gateway was answered"
