"""What the tests of reported cases share: their numbering, the gauges they read, and ways of asking.

A test whose id begins with 029 is about report 29 of the list that the project keeps of what users of such gateways report. Reports that
are about time alone (prefix affinity, fair queueing) are played by the simulator, and have no test here.
"""
import concurrent.futures
import http.client

import openai
import pytest

from .deadline import eventually
from .gateway import KEY

ASK = "alpha beta gamma delta"


def case(number, says):
    """Names a test by its row."""
    return pytest.mark.parametrize("row", [pytest.param(number, id=f"{number:03}-{says.replace(' ', '-')}")])


def in_flight(gateway):
    return gateway.metrics().sum("huntgroup_requests_in_flight")


def busy(gateway):
    return gateway.metrics().sum("huntgroup_replica_slots", state="busy")


def started(phones):
    return [phone.stats()["started"] for phone in phones]


def together(count, ask, workers=None):
    with concurrent.futures.ThreadPoolExecutor(workers or count) as pool:
        return list(pool.map(ask, range(count)))


def events_until_cut(stream):
    """The events of a stream that is expected to be cut."""
    events = []
    with pytest.raises((http.client.HTTPException, OSError)):
        for event in stream.events():
            events.append(event)
    return events


def text(answer):
    assert answer.status == 200, answer
    return answer.json()["choices"][0]["message"]["content"]


def sdk(gateway, **options):
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY, **options)


def held(gateway, phones, pool, seconds=8):
    """Keeps the only slot busy."""
    phones[0].fault("slow", seconds=seconds, next=1)
    future = pool.submit(gateway.chat, text=ASK, max_tokens=2)
    eventually(lambda: phones[0].stats()["running_now"] == 1, what="the phone at work")
    return future
