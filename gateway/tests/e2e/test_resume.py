"""A connection lost while its engine lives: the rest of the answer is fetched from the engine that wrote it, and nobody notices.

A real engine keeps what it streams. Between it and the gateway stands a tunnel of ours that cuts the connection at an exact moment; the
engine writes on. What the client has in the end must be what the engine wrote: not a second prefill, not another engine's words, and so
the same at any temperature.
"""
from urllib.parse import parse_qs, urlsplit

import pytest

from support import asking, http
from support.asking import chat
from support.breaking import Pair, after, after_finish, after_text, before_done, in_prefill, inside_a_character, inside_text, tunnels_to
from support.deadline import eventually
from support.tunnel import Event

TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "the time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]},
    },
}

both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])


@pytest.fixture(scope="module")
def engines(shared_stage):
    """Two of each model: who is asked a second time would be seen."""
    return {model: tunnels_to(shared_stage, model) for model in ("tiny", "polyglot", "thinker", "talker", "caller")}


class Watched(Pair):
    """A pair whose engines' own word is asked for."""

    def counted(self):
        """(Tokens of prompts, tokens written) of both engines since they were started, when they are at rest."""
        def sums():
            assert not any(tunnel.engine.busy() for tunnel in self.tunnels), "a slot still works"
            counters = [tunnel.engine.counters() for tunnel in self.tunnels]
            return sum(fresh + cached for fresh, cached, _ in counters), sum(written for _, _, written in counters)

        return eventually(sums, within=10, what="engines at rest")

    def read_on(self):
        """(Tunnel, name, first byte) of every reading on since the last cut was ordered."""
        found = []
        for tunnel in self.tunnels:
            for target in tunnel.fetched:
                parts = urlsplit(target)
                if parts.path == "/v1/stream":
                    asked = parse_qs(parts.query)
                    found.append((tunnel, asked["conv_id"][0], int(asked["from"][0])))
        return found

    def kept(self):
        """All that the engine wrote of the answer that was read on, as it keeps it."""
        (tunnel, name, _), *_ = self.read_on()
        answer = http.request("GET", f"{tunnel.engine.url}/v1/stream?conv_id={name}&from=0")
        assert answer.status == 200, answer
        return [Event(raw + b"\n\n") for raw in answer.body.split(b"\n\n") if raw.strip()]


@pytest.fixture
def pair_of(engines, stage):
    def pair(model, **config):
        for tunnel in engines[model]:
            tunnel.cut = None
        return Watched(stage.gateway(engines[model], config=config), engines[model])

    return pair


MOMENTS = {
    "before the first token": after_text(0),
    "after the first token": after_text(1),
    "after some words": after_text(9),
    "inside a word": inside_text(6),
    "inside an event's head": inside_text(6, at=lambda raw, text: 3),
}
# What only streams of these two APIs have.
ENDS = {"after the finish reason": after_finish, "before the end": before_done}
EVERY = [(api, moment) for moment in MOMENTS for api in asking.ALL] + [(api, end) for end in ENDS for api in ("chat", "completions")]


@pytest.mark.parametrize("api, moment", EVERY, ids=[f"{api}-{moment}".replace(" ", "-") for api, moment in EVERY])
@both
def test_a_lost_connection_to_an_engine_that_lives_costs_nothing(pair_of, api, stream, moment):
    pair = pair_of("tiny")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "tiny", max_tokens=24)
    uncut = ask()
    before = pair.counted()
    cut = pair.cut({**MOMENTS, **ENDS}[moment])
    said = ask()
    prompts, written = (now - then for now, then in zip(pair.counted(), before))
    assert len(cut.made) == 1 and said.bare() == uncut.bare() and len(said.ids) == 1
    assert len(said.text.split()) == said.tokens == 24
    assert len(pair.asked()) == 1, "an engine was asked twice"
    assert (prompts, written) == (said.prompt_tokens, 24), "a prompt was read twice"
    assert pair.continuations() == pair.continuations(outcome="resumed") <= 1


@both
@pytest.mark.parametrize("where", [after_text(0), after_text(1), inside_text(7)], ids=["before", "first", "inside"])
def test_an_answer_that_is_drawn_by_lot_is_the_one_that_was_drawn(pair_of, stream, where):
    """At a temperature of 1 no second run would say the same: only what the engine has kept can be the rest."""
    pair = pair_of("tiny")
    cut = pair.cut(where)
    said = chat(pair.gateway, stream, "tiny", max_tokens=40, temperature=1)
    assert len(cut.made) == 1 and len(pair.asked()) == 1 and len(pair.read_on()) == 1
    kept = pair.kept()
    assert said.text == "".join(event.text for event in kept) and kept[-1].done
    assert said.tokens == 40 and said.finish == "length"


@both
def test_characters_and_their_pieces_come_whole(pair_of, stream):
    pair = pair_of("polyglot")
    cut = pair.cut(inside_a_character)
    for _ in range(20):
        # Drawn by lot: now and then there is no character of several bytes in an answer.
        said = chat(pair.gateway, stream, "polyglot", max_tokens=60, temperature=1)
        if cut.made:
            break
    assert len(cut.made) == 1 and "\ufffd" not in said.text and not said.text.isascii()
    assert said.text == "".join(event.text for event in pair.kept())


@pytest.mark.parametrize("where", [after("thought", 1), after("thought", 5), after_text(1), after_text(5)],
                         ids=["first-thought", "thoughts", "first-word", "words"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@both
def test_thoughts_and_the_answer_behind_them_are_the_same(pair_of, api, stream, where):
    """Carried on by another engine, an answer behind thoughts may become another one. Read on, it can't."""
    pair = pair_of("thinker")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "thinker", max_tokens=200)
    uncut = ask()
    assert uncut.thoughts and uncut.text
    before = pair.counted()
    cut = pair.cut(where)
    said = ask()
    prompts, written = (now - then for now, then in zip(pair.counted(), before))
    assert len(cut.made) == 1 and said.bare() == uncut.bare() and len(pair.asked()) == 1
    assert (prompts, written) == (said.prompt_tokens, said.tokens)


@pytest.mark.parametrize("pieces", [1, 6, 15])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@both
def test_a_tool_call_is_read_on_where_its_connection_was_lost(pair_of, api, stream, pieces):
    pair = pair_of("caller")
    ask = lambda: asking.ALL[api](pair.gateway, stream, "caller", max_tokens=300, tools=[TOOL])
    uncut = ask()
    cut = pair.cut(after("of_call", pieces))
    said = ask()
    assert uncut.calls and len(cut.made) == 1 and said.bare() == uncut.bare() and len(pair.asked()) == 1


@both
def test_several_choices_are_read_on_together(pair_of, stream):
    pair = pair_of("talker")
    ask = {"model": "talker", "messages": asking.WORDS, "n": 2, "max_tokens": 60, "temperature": 1}
    cut = pair.cut(after_text(9))
    with asking.sdk(pair.gateway) as client:
        if stream:
            texts = ["", ""]
            for chunk in client.chat.completions.create(**ask, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        else:
            texts = [choice.message.content for choice in client.chat.completions.create(**ask).choices]
    assert len(cut.made) == 1 and len(pair.asked()) == 1
    kept = pair.kept()
    assert texts == ["".join(e.text for e in kept if e.choice.get("index") == index) for index in range(2)]


@both
def test_it_is_read_on_as_often_as_it_breaks_off(pair_of, stream):
    pair = pair_of("tiny")
    uncut = chat(pair.gateway, stream, "tiny", max_tokens=60)
    # Counted on each connection: of the first 7 words come, then 7 more, and so on.
    cut = pair.cut(after_text(7), times=4)
    said = chat(pair.gateway, stream, "tiny", max_tokens=60)
    assert len(cut.made) == 4 and said.bare() == uncut.bare() and len(pair.asked()) == 1
    starts = [start for _, _, start in pair.read_on()]
    assert starts == sorted(set(starts)) and len({name for _, name, _ in pair.read_on()}) == 1
    assert pair.continuations(outcome="resumed") == 4


@both
def test_a_connection_lost_while_the_prompt_is_read_is_no_second_prefill(stage, stream):
    tunnels = tunnels_to(stage, "tiny", batch=64, context=4096)
    pair = Watched(stage.gateway(tunnels), tunnels)
    long = [{"role": "user", "content": "hand picture again change " * 300}]
    before = pair.counted()
    cut = pair.cut(in_prefill)
    said = chat(pair.gateway, stream, "tiny", long, max_tokens=12)
    prompts, written = (now - then for now, then in zip(pair.counted(), before))
    assert len(cut.made) == 1 and len(pair.asked()) == 1
    assert (prompts, written) == (said.prompt_tokens, said.tokens) and said.tokens == 12 and prompts > 1000


def test_an_engine_that_was_started_anew_has_nothing_kept_and_another_goes_on(stage):
    """What answers at the address is another process: it does not know the stream, and says so."""
    tunnels = tunnels_to(stage, "tiny")
    pair = Watched(stage.gateway(tunnels), tunnels)
    uncut = chat(pair.gateway, True, "tiny", max_tokens=40)

    def restart(tunnel):
        port = tunnel.engine.port
        tunnel.engine.kill()
        tunnel.engine = stage.llama(model="tiny", port=port)

    cut = pair.cut(after_text(9), then=restart)
    said = chat(pair.gateway, True, "tiny", max_tokens=40)
    assert len(cut.made) == 1 and said.bare() == uncut.bare()
    assert len(pair.read_on()) == 1 and len(pair.carried_on()) == 1
    assert pair.continuations(outcome="resumed") == 0


def test_a_client_that_leaves_frees_the_slot_of_an_engine_that_keeps_its_streams(stage):
    tunnel, = tunnels_to(stage, "slow", count=1, slots=1)
    gateway = stage.gateway([tunnel])
    with gateway.stream("slow", max_tokens=4000, temperature=0) as stream:
        for _, _ in zip(range(3), stream.events()):
            pass
        assert tunnel.engine.busy() == 1
    eventually(lambda: tunnel.engine.busy() == 0, within=10, what="a free slot")
