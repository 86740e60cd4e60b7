"""End-to-end tests of huntgroup: the built program, real engines, official clients, fake phones, raw sockets.

    gateway/tests/e2e/install.sh                                  once; everything goes to .venv-e2e in the repository's root
    cargo build -p huntgroup -p fakephone
    .venv-e2e/bin/python -m pytest gateway/tests/e2e              all of it; -n 2 on two cores
    .venv-e2e/bin/python -m pytest gateway/tests/e2e -k drain     one subject

`gateway/tests/run` does all three, with the Rust tests before them. E2E_BIN names another folder of programs, say target/release.

What stands where: `support/` is what the tests stand on (processes, engines, phones, the gateway, clients) and knows no test; each
`test_*.py` is one subject; `node/` holds the Node client's checks; `tiny_gguf.py` makes the engines' models, `llama_server.py` runs them.

Rules. A test waits for a condition under a deadline and never for a time. Every listener is on 127.0.0.1, below the ephemeral ports.
Every process is ended by its own id. After every test each gateway that still runs must come to rest: all in-flight, queue and
busy-slot gauges back to 0 within 5 s. When a test fails, the end of every process's log is in the report.
"""
import pathlib
import types

import openai
import pytest

from support.gateway import Gateway, replica
from support.llama import Llama
from support.tunnel import Tunnel


class Stage:
    """The processes of a test (or module), ended in reverse order; the gateways among them are held to the rule of rest."""

    def __init__(self, directory):
        self.directory, self.members, self._count = pathlib.Path(directory), [], 0

    def place(self, name):
        self._count += 1
        return self.directory / f"{self._count:02}-{name}"

    def llama(self, **options):
        return self._join(Llama(self.place("llama.log"), **options))

    def tunnel(self, engine):
        return self._join(Tunnel(engine))

    def gateway(self, replicas=(), config=None, ready=None, **options):
        """A gateway over `replicas`: engines, phones, or entries as `replica()` makes them. Waits until `ready` of them are; 0: don't."""
        entries = [r if isinstance(r, dict) else replica(r.url, **getattr(r, "stated", {})) for r in replicas]
        made = self._join(Gateway(self.place("gateway"), {**({"replicas": entries} if entries else {}), **(config or {})}, **options))
        if ready != 0 and entries:
            made.wait_ready(len(entries) if ready is None else ready).wait_known()
        # Getting to know a phone takes requests that are no probes in its book (empty ones, to every route): a test counts from here.
        for phone in replicas:
            if hasattr(phone, "forget"):
                phone.forget()
        return made

    def phones(self, count=1, **options):
        from support.phones import Phones

        return self._join(Phones(self.place("fakephone.log"), count, **options))

    def _join(self, member):
        self.members.append(member)
        return member

    def assert_at_rest(self):
        for member in self.members:
            if isinstance(member, Gateway) and member.process.alive:
                member.assert_at_rest()

    def logs(self):
        processes = {m.process.pid: m.process for m in self.members}
        return [(f"{one.name} {one.pid}", one.tail(80)) for one in processes.values()]

    def end(self):
        for member in reversed(self.members):
            member.stop()


stages = []


def _stage(directory):
    stage = Stage(directory)
    stages.append(stage)
    yield stage
    stages.remove(stage)
    stage.end()


@pytest.fixture
def stage(tmp_path):
    """Processes for one test."""
    yield from _stage(tmp_path)


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory):
    """Processes for all tests of a module."""
    yield from _stage(tmp_path_factory.mktemp("stage"))


@pytest.fixture(autouse=True)
def rest(request):
    """The rule of rest, for every gateway that runs when a test ends well."""
    # Asked for before the test's own fixtures are torn down: the gateways must still run.
    for name in ("stage", "shared_stage"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    yield
    if not getattr(request.node, "failed", False):
        for stage in stages:
            stage.assert_at_rest()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.failed = True
        for stage in stages:
            report.sections += stage.logs()
    return report


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Real engines: two with the same model, and one for each thing that takes a model of its own."""
    stage = Stage(tmp_path_factory.mktemp("zoo"))
    try:
        yield types.SimpleNamespace(
            tiny=[stage.llama(model="tiny", embeddings=True, key="sk-phone-0123456789") for _ in range(2)],
            caller=stage.llama(model="caller"), talker=stage.llama(model="talker"), decider=stage.llama(model="decider"),
        )
    finally:
        stage.end()


@pytest.fixture(scope="module")
def gateway_of_zoo(zoo, shared_stage):
    """A gateway over all real engines, which finds out by itself what they serve."""
    with_key = [replica(engine.url, api_key="env:E2E_PHONE_KEY") for engine in zoo.tiny]
    return shared_stage.gateway(
        [*with_key, zoo.caller, zoo.talker, zoo.decider], config={"models": {"tiny": {"aliases": ["words"]}}}
    )


@pytest.fixture
def client(gateway_of_zoo):
    """The official Python client, as its users make it."""
    with openai.OpenAI(base_url=gateway_of_zoo.url + "/v1", api_key=gateway_of_zoo.key) as client:
        yield client
