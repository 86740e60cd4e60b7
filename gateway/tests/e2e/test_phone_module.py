"""config/phone: the module that a phone's app adds, against its own tests and against a real gateway."""
import json
import pathlib
import subprocess

import pytest

from support.deadline import eventually
from support.gateway import root
from support.process import Process, free_port

MODULE = root / "config" / "phone"
TOKEN = "e2e-registration-token-0123456789"
APP = """
import {{ generateKeyPairSync, createPrivateKey, createPublicKey, sign }} from "node:crypto";
import {{ join }} from {module};
const seed = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), Buffer.alloc(32, {seed})]);
const key = createPrivateKey({{ key: seed, format: "der", type: "pkcs8" }});
const publicKey = createPublicKey(key).export({{ format: "der", type: "spki" }}).subarray(-32).toString("hex");
const phone = join({{
  callback: {callback},
  url: {url},
  replica: {{ slots: 2, cost_acu_per_day: 0.5 }},
  report: () => ({{ battery: 81, charging: true, temperature: 36.5 }}),
  key: {{ publicKey, sign: (text) => sign(null, Buffer.from(text, "hex"), key).toString("hex") }},
}});
process.on("SIGTERM", async () => {{ await phone.leave(); process.exit(0); }});
setInterval(() => {{}}, 1000);
"""


def test_the_modules_own_tests_pass():
    done = subprocess.run(["node", "--test", str(MODULE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def gateway(stage, monkeypatch):
    monkeypatch.setenv("E2E_REGISTRATION_TOKEN", TOKEN)
    port = free_port()
    made = stage.gateway(config={"registration": {"listen": f"127.0.0.1:{port}", "token": "env:E2E_REGISTRATION_TOKEN", "min_verification": "signed"}})
    made.callback = f"http://127.0.0.1:{port}/admin/register?token={TOKEN}"
    return made


class App:
    """An app with the module, on a phone of its own key."""

    def __init__(self, file, gateway, phone, seed=7):
        values = {"module": (MODULE / "huntgroup.mjs").as_uri(), "callback": gateway.callback, "url": phone.url}
        file.write_text(APP.format(seed=seed, **{name: json.dumps(value) for name, value in values.items()}))
        self.process = Process(["node", file], pathlib.Path(f"{file}.log"))

    def stop(self):
        return self.process.stop()


def ready(gateway, count=1):
    def listed():
        replicas = gateway.replicas()
        assert [r["state"] for r in replicas] == ["ready"] * count, replicas
        return replicas

    return eventually(listed, within=30, what="a phone that serves")


def test_a_phone_with_the_module_joins_signed_moves_and_leaves(stage, gateway):
    first, second = stage.phones(2, model="tiny", speed="0.8b", time_scale=50)
    before = stage._join(App(stage.place("app.mjs"), gateway, first))
    replica, = ready(gateway)
    assert replica["verification"] == "signed" and replica["source"] == "registration"
    assert (replica["slots"], replica["cost_acu_per_day"], replica["claimed_cost_acu_per_day"]) == (2, None, 0.5)
    assert gateway.chat(max_tokens=4).status == 200
    # The same key at another address: redeployed. Its old app is gone without a word.
    before.process.kill()
    after = stage._join(App(stage.place("app.mjs"), gateway, second))
    moved = eventually(lambda: [r for r in ready(gateway) if r["url"] == second.url], within=30, what="the phone at its new address")
    assert (moved[0]["id"], moved[0]["name"], moved[0]["added_at"]) == (replica["id"], replica["name"], replica["added_at"])
    assert gateway.chat(max_tokens=4).headers["x-huntgroup-replica"] == replica["name"]
    after.stop()
    eventually(lambda: not gateway.replicas(), within=20, what="a pool without the phone that left")
