"""Gateways of which each gets into one kind of trouble, a Prometheus that watches them all, and who causes and ends the trouble.

A `Place` is a gateway with its phones and ordinary load. An `Act` is one condition: the alerts that it must fire, what causes it and
what ends it. A place plays its acts one after the other; all places play side by side, so that waiting costs time only once.
"""
import concurrent.futures
import dataclasses
import http.client
import re
import threading
import time
import typing

from .cases import text
from .chain import Chain
from .deadline import eventually
from .process import free_port
from .prometheus import RULES, Prometheus

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def faster(rules, factor, replaced):
    """The rules with every length (`for:`, windows, steps of subqueries) divided by `factor`, and for each alert that is named in
    `replaced` one piece of its expression replaced by another. Nothing else changes."""
    def length(found):
        return f"{round(float(found[1]) * UNITS[found[2]] * 1000 / factor)}ms"

    def window(found):
        return "[" + re.sub(r"(\d+)(ms|[smh])", length, found[1]) + "]"

    out = []
    for block in re.split(r"(?m)^(?=      - alert: )", rules):
        name = re.match(r"      - alert: (\w+)", block)
        block = re.sub(r"(?m)(?<=^        for: )(\d+)(ms|[smh])$", length, block)
        block = re.sub(r"\[([\d:smh]+)\]", window, block)
        if name and name[1] in replaced:
            old, new = replaced[name[1]]
            assert block.count(old) >= 1, f"{name[1]} has changed: no {old}"
            block = block.replace(old, new)
        out.append(block)
    return "".join(out)


def alerts():
    """The names of all alerts, in order."""
    return re.findall(r"- alert: (\w+)", RULES.read_text())


@dataclasses.dataclass
class Act:
    """One condition. It must fire `alerts` within `within` seconds of its cause, none of which has fired at this place before; after
    its end those in `resolves` must be over within as long."""

    alerts: tuple
    cause: typing.Callable
    end: typing.Callable = lambda place: None
    resolves: tuple = ()
    within: float = 60.0
    skip: str | None = None


class Ordinary:
    """A stream and a plain request, over and over. While `tolerant`, it takes every answer; otherwise each must be whole."""

    def __init__(self, gateway):
        self._gateway, self._over = gateway, threading.Event()
        self.tolerant, self.answered, self.odd = False, 0, []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._over.wait(0.2):
            try:
                with self._gateway.stream(max_tokens=4, headers={"x-huntgroup-class": "interactive"}) as stream:
                    whole = stream.head() == 200 and list(stream.events())[-1] == "[DONE]"
                assert whole and text(self._gateway.chat(max_tokens=4))
                self.answered += 1
            except (AssertionError, OSError, http.client.HTTPException, LookupError) as error:
                if not self.tolerant:
                    self.odd.append(error)
                    return

    def stop(self):
        self._over.set()
        self._thread.join(70)
        assert not self._thread.is_alive(), "a request of the load never ended"


class Place:
    """A gateway in front of phones of its own. `allowed`: alerts that follow from what its acts cause, besides those of the acts."""

    def __init__(self, name, acts=(), allowed=(), phones=2, config=None, options=None, within=()):
        self.name, self.acts, self.allowed = name, acts, set(allowed)
        self._phones, self._config, self._options, self._within = phones, config, options or {}, within
        self.left, self.chain = [], None

    def open(self, stage):
        self.stage = stage
        options = {"model": "tiny", **self._options}
        # A look at the capacity takes a debug build seconds of a core that all places share: only where that is tried.
        config = {"capacity": {"every": "1h"}, **(self._config or {})}
        if options.pop("relay", False):
            options["relay"] = f"127.0.0.1:{free_port()}"
            options["ca_out"] = stage.directory / "ca.pem"
            config["pool"] = {"ca_file": str(options["ca_out"])}
        if options.pop("chain", False):
            self.chain = Chain()
            config["chain"] = self.chain.watched()
        self.phones = stage.phones(self._phones, **options)
        self.gateway = stage.gateway(self.phones, config=config, within=self._within)

    def begin(self, watch):
        self.watch, self.load = watch, Ordinary(self.gateway)

    def play(self):
        """What became of each act: an error by the names of its alerts, or None."""
        try:
            self._healthy()
        except Exception as error:
            return {act.alerts: error for act in self.acts}
        ends = {}
        for act in self.acts:
            if act.skip:
                continue
            try:
                ends[act.alerts] = None
                self._play(act)
            except Exception as error:  # the test of the alert tells it; the other acts go on
                ends[act.alerts] = error
        return ends

    def _healthy(self):
        """Ordinary load, for a window full of scrapes."""
        def seen():
            assert not self.load.odd, self.load.odd
            return self.load.answered >= 5 and self.watch.query(f'count_over_time(up{{instance="{self.name}"}}[5s]) >= 8')

        eventually(seen, within=60, what=f"{self.name}: ordinary load", every=0.2)
        assert not self.fired(), f"{self.name}: {self.fired()} fire while all is well"

    def _play(self, act):
        early = self.fired() & set(act.alerts)
        assert not early, f"{early} fired before their cause"
        begun = time.monotonic()
        try:
            act.cause(self)
            caused = time.monotonic()
            for alert in act.alerts:
                eventually(lambda alert=alert: alert in self.fired(), within=act.within, what=f"{self.name}: {alert}", every=0.25)
            fired = time.monotonic()
        finally:
            act.end(self)
        for alert in act.resolves:
            eventually(lambda alert=alert: alert not in self.firing(), within=act.within, what=f"{self.name}: the end of {alert}", every=0.25)
        ended = time.monotonic()
        # Shown by pytest -s, and beside a failure.
        times = f"caused in {caused - begun:.1f} s, fired in {fired - caused:.1f} s, over in {ended - fired:.1f} s"
        print(f"{self.name}: {', '.join(act.alerts)}: {times}")

    def firing(self):
        return {labels["alertname"] for labels, _ in self.watch.samples(self._alerts)}

    def fired(self):
        """All that have fired by now."""
        return {labels["alertname"] for labels, _ in self.watch.samples(f"count_over_time({self._alerts}[10m])")}

    @property
    def _alerts(self):
        return f'ALERTS{{alertstate="firing",instance="{self.name}"}}'

    # --- what acts do ---

    def phone(self, number, order, **body):
        answer = self.phones.control("POST", f"/phones/{number}/{order}", body or None)
        assert answer.status < 300, answer

    def fault(self, fault, **fields):
        for phone in self.phones:
            phone.fault(fault, **fields)

    def heal(self):
        self.fault("none")

    def manage(self, method, path, json=None):
        return self.gateway.manage(method, path, json)

    def ask(self, **fields):
        """A request whose answer nobody waits for until `hang_up`."""
        self.left.append(self.gateway.stream(**fields))

    def hang_up(self):
        while self.left:
            self.left.pop().close()


def play(places, stage_of, directory, factor, replaced, every):
    """Opens all places, has them watched, and plays their acts side by side; returns Prometheus and what became of the acts."""
    rules = directory / "alerts.yaml"
    rules.write_text(faster(RULES.read_text(), factor, replaced))
    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(lambda place: place.open(stage_of(place.name)), places))
        targets = [(place.gateway.admin.removeprefix("http://"), {"instance": place.name}) for place in places]
        stage = stage_of("prometheus")
        watch = stage._join(Prometheus(stage.place("prometheus"), targets, rules, every))
        for place in places:
            place.begin(watch)
        ends = {}
        try:
            for of_place in pool.map(Place.play, places):
                ends.update(of_place)
        finally:
            for place in places:
                place.load.stop()
                if place.chain:
                    place.chain.stop()
    return watch, ends
