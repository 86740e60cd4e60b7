"""Phones announce themselves: the callback alone brings them to serving, and a redeploy keeps what is known of them."""
from support import http
from support.cases import ASK, text
from support.deadline import eventually
from support.gateway import SECRETS
from support.phones import expected_text
from support.process import free_port

TOKEN = "e2e-registration-0123456789"
SECRETS["E2E_REGISTRATION"] = TOKEN


def listening(stage, **registration):
    """A gateway without replicas that takes announcements, and the URL for it."""
    port = free_port()
    config = {"registration": {"listen": f"127.0.0.1:{port}", "token": "env:E2E_REGISTRATION", **registration}}
    return stage.gateway(config=config), f"http://127.0.0.1:{port}/admin/register?token={TOKEN}"


def test_the_callback_alone_brings_phones_to_serving(stage):
    gateway, callback = listening(stage)
    phones = stage.phones(3, model="tiny", register=callback)
    gateway.wait_ready(3)
    assert {one["url"].rstrip("/") for one in gateway.replicas()} == {phone.url for phone in phones}
    assert {(one["source"], one["verification"]) for one in gateway.replicas()} == {("registration", "token")}
    assert text(gateway.chat(text=ASK, max_tokens=4)) == expected_text(ASK, 4)
    assert gateway.metrics().sum("huntgroup_registrations_total", outcome="accepted") == 3


def test_a_fake_phone_that_is_refused_says_why_at_once(stage):
    gateway, callback = listening(stage)
    phones = stage.phones(2, model="tiny", register=callback + "x")
    eventually(lambda: "trying again" in phones.process.tail(), within=20, what="the refusal")
    # Once is enough: the next tries are refused for the same reason.
    eventually(lambda: gateway.metrics().sum("huntgroup_registrations_total") >= 3, within=20, what="more tries")
    [said] = [line for line in phones.process.tail().splitlines() if "trying again" in line]
    assert phones[0].url in said and "401" in said and "token" in said, said
    told = gateway.manage("GET", "/admin/registrations/refused").json()["data"][0]
    assert told["message"] in said, "in the gateway's own words"


def test_a_redeploy_keeps_number_name_and_history(stage):
    gateway, callback = listening(stage)
    phones = stage.phones(2, model="tiny", slots=1, speed="0.8b")

    def started(phone):
        place = {"jobId": [{"acurast": "5Grw"}, 4711], "processorAddress": "5Fphone"}
        return http.request("POST", callback, json={"event": "started", "webUrl": phone.url, **place})

    assert started(phones[0]).status == 201
    gateway.wait_ready(1).wait_known()
    assert text(gateway.chat(text=ASK, max_tokens=4)) == expected_text(ASK, 4)
    before = gateway.replicas()[0]
    phones[0].fault("refuse")
    eventually(lambda: gateway.replicas()[0]["state"] == "out", within=20, what="the old address to be out")
    moved = started(phones[1])
    assert (moved.status, moved.json()["outcome"], moved.json()["id"]) == (200, "moved", before["id"])
    gateway.wait_ready(1)
    answer = gateway.chat(text=ASK, max_tokens=4)
    assert text(answer) == expected_text(ASK, 4) and answer.headers["x-huntgroup-replica"] == before["name"]
    [after] = gateway.replicas()
    assert after["url"].rstrip("/") == phones[1].url and after["deployment"] == "Acurast:5Grw:4711"
    assert after["history"][: len(before["history"])] == before["history"]
    assert "moved" in [change["reason"] for change in after["history"]]


def test_what_is_not_registration_is_not_there(stage):
    gateway, callback = listening(stage)
    outside = callback.split("/admin")[0]
    for method, path in [("GET", "/admin/replicas"), ("GET", "/metrics"), ("POST", "/v1/chat/completions"), ("GET", "/healthz")]:
        answer = http.request(method, outside + path, json={} if method == "POST" else None)
        assert answer.status == 404 and answer.error["code"] == "not_found", (path, answer)
    wrong = http.request("POST", callback + "x", json={"event": "started", "url": "https://a.acu.run"})
    assert wrong.status == 401 and wrong.error["code"] == "invalid_registration_token"
    assert "missing or wrong" in wrong.error["message"], "whoever sent one is not told to send one"
    assert TOKEN not in repr(wrong) and gateway.replicas() == []
