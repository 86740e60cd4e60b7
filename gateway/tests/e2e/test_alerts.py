"""Every alert is fired by its own condition, on real gateways, by the real rules, and by nothing else.

`dashboards/alerts_test.yaml` tells promtool what each rule does with series that somebody has made up; here the trouble is made, and
metrics, scrapes and rules have to find it. An alert without an act here fails, and so does one that fires too early, or where nobody
has caused it.

Time runs 60 times faster in the rules: 1m is 1 s, 1h is 60 s, in `for:`, windows and subqueries alike. Prometheus looks twice a
second, so the shortest window (5m) holds ten scrapes. Two thresholds are lengths of time themselves and are replaced, in `REPLACED`.
Nothing else of the rules is changed.
"""
import http.client
import os
import shutil
import subprocess
import threading
import time

import pytest

from conftest import Stage
from support.batches import asking, begin, client_of
from support.deadline import eventually
from support.places import Act, Place, alerts, play

# One worker: all gateways and Prometheus are started once, for all alerts.
pytestmark = pytest.mark.xdist_group("alerts")

FACTOR, EVERY = 60, "500ms"
REPLACED = {
    # 65 minutes, which no test can wait for.
    "HuntgroupRequestStuck": ("> 3900", "> 4"),
    # 30 s to the first token, of which a window of 5 s would see none.
    "HuntgroupFirstTokenLate": ('le=~"30|30.0"', 'le=~"2|2.0"'),
}


# --- a pool that goes away, and comes back ---

def half_of_the_phones_die(place):
    place.load.tolerant = True
    for number in (0, 1):
        place.phone(number, "kill")


def all_phones_die(place):
    """And a batch comes that nobody can run."""
    place.load.tolerant = True
    place.phone("all", "kill")
    eventually(lambda: {r["state"] for r in place.gateway.replicas()} == {"out"}, within=20, what="a pool that is out")
    night(place, 3)


def phones_revive(place):
    place.phone("all", "revive")


def batch_ends(place):
    with client_of(place.gateway) as client:
        client.batches.cancel(place.batch)


def phones_revive_and_batch_ends(place):
    phones_revive(place)
    batch_ends(place)


def the_relay_fails(place):
    """It lets nobody through to any of its phones, though nothing is wrong with them."""
    place.load.tolerant = True
    place.fault("refuse")


def the_chain_goes_away(place):
    place.chain.stopped = True


def the_chain_is_back(place):
    place.chain.stopped = False


# --- more work than slots, and slow work ---

def requests_pile_up(place):
    """Two a second, for one slot that is never free again."""
    place.load.stop()
    place.fault("slow", seconds=300, on="work")
    place.arriving = threading.Event()

    def arrive():
        while not place.arriving.wait(0.5):
            place.ask(max_tokens=4)

    place.arrivals = threading.Thread(target=arrive, daemon=True)
    place.arrivals.start()


def nothing_more(place):
    """The queue is full by now; arrivals go on to be refused."""


def requests_leave(place):
    place.arriving.set()
    place.arrivals.join(10)
    place.hang_up()
    place.heal()


def a_request_never_ends(place):
    place.ask(max_tokens=6000)


def phones_think_before_they_speak(place):
    """Longer than promised, before each first token."""
    place.fault("slow", seconds=3, on="work")
    people_ask(place, 6, max_tokens=2)


def phones_speak_at_once(place):
    place.heal()
    people_leave(place)


def more_people_than_phones(place):
    people_ask(place, 5, max_tokens=100)


def people_ask(place, count, **fields):
    """So many, each again and again, and each waits for the answer."""
    place.load.stop()
    place.over = threading.Event()

    def ask():
        while not place.over.is_set():
            try:
                with place.gateway.stream(headers={"x-huntgroup-class": "interactive"}, **fields) as stream:
                    list(stream.events())
            except (OSError, http.client.HTTPException):
                return

    place.people = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for one in place.people:
        one.start()


def people_leave(place):
    place.over.set()
    for one in place.people:
        one.join(30)


# --- attempts that fail ---

def answers_break_off(place):
    """Each, on every phone, when its prompt is read; a batch tries again and again."""
    place.load.tolerant = True
    place.fault("error_after", chunks=0, code=500, on="work")
    night(place, 1000)


def answers_are_whole(place):
    place.heal()
    batch_ends(place)


# --- batches ---

def night(place, lines, window="24h", tokens=8):
    with client_of(place.gateway) as client:
        place.batch = begin(client, {f"line-{n}": asking(f"say {n} words", tokens=tokens) for n in range(lines)}, window=window).id


def a_batch_is_too_large_for_its_time(place):
    night(place, 3000, window="10m", tokens=20)


def the_batch_database_goes_away(place):
    night(place, 3000)

    def running():
        with client_of(place.gateway) as client:
            return client.batches.retrieve(place.batch).request_counts.completed >= 1

    eventually(running, within=60, what="a batch that runs")
    moved(place, "huntgroup-batches.db")


def moved(place, name):
    """A file goes away under the gateway, which has it open."""
    place.file = place.gateway.directory / name
    place.file.rename(place.file.with_suffix(".away"))


def put_back(place):
    place.file.with_suffix(".away").rename(place.file)


def the_batch_database_comes_back(place):
    put_back(place)
    eventually(lambda: batch_ends(place) or True, within=30, what="a batch that can be cancelled", every=0.5)


# --- what an operator forgets, and what the machine lacks ---

def the_state_database_goes_away(place):
    moved(place, "huntgroup.db")
    refused = place.manage("POST", f"/admin/replicas/{place.gateway.replicas()[0]['id']}/drain")
    assert refused.status == 503, refused


def a_key_is_changed_on_the_phone(place):
    place.load.tolerant = True
    place.phones[0].fault("wrong_key")


def the_key_is_right_again(place):
    place.phones[0].heal()


def a_phone_comes_and_goes(place):
    place.load.tolerant = True
    place.phones[1].fault("flap", up_s=1.5, down_s=1.5)


def the_phone_stays(place):
    place.phones[1].heal()


def a_deployment_has_fifty_minutes_left(place):
    amended(place, int(time.time()) + 3000)


def the_deployment_is_prolonged(place):
    amended(place, int(time.time()) + 30 * 86_400)


def amended(place, expires_at):
    change = {"expires_at": expires_at, "labels": {"deployment_id": "Acurast:5Grw:4711"}}
    answer = place.manage("PATCH", f"/admin/replicas/{place.gateway.replicas()[2]['id']}", change)
    assert answer.status == 200, answer


def limit(place, of, soft):
    """Sets a soft limit of the gateway, as the user that it runs as; returns what it was."""
    prlimit = [*place.gateway.within, "prlimit", f"--pid={place.gateway.process.pid}"]
    was = subprocess.run([*prlimit, f"--{of}", "--output=SOFT", "--noheadings"], capture_output=True, text=True, check=True)
    subprocess.run([*prlimit, f"--{of}={soft}:"], check=True)
    return was.stdout.strip()


def descriptors_become_scarce(place):
    """And stay so: the limit follows what is open, which ends and begins with the connections that lie idle."""
    def tighten():
        opened = len(os.listdir(f"/proc/{place.gateway.process.pid}/fd"))
        return limit(place, "nofile", int(opened / 0.88) + 1)

    def follow():
        while not place.abounding.wait(0.5):
            tighten()

    place.abounding, place.descriptors = threading.Event(), tighten()
    place.following = threading.Thread(target=follow, daemon=True)
    place.following.start()


def descriptors_abound(place):
    place.abounding.set()
    place.following.join()
    limit(place, "nofile", place.descriptors)


def the_system_gives_no_thread(place):
    """The only known way to make a request panic that is no defect: a question to the database of batches takes a thread, and tokio
    panics where the system refuses the first one."""
    def panics():
        return place.gateway.metrics().sum("huntgroup_panics_total")

    def panicked():
        was = limit(place, "nproc", 1)
        try:
            answer = place.gateway.get("/v1/batches")
        finally:
            limit(place, "nproc", was)
        # While a thread of an earlier question is still there, it takes this one as well.
        assert answer.status == 500, answer
        return True

    before = panics()
    eventually(panicked, within=40, what="a panic", every=12)
    assert panics() == before + 1
    assert place.gateway.get("/v1/batches").status == 200, "all others go on"


# --- a process that goes away ---

def it_crashes_again_and_again(place):
    changes = f'changes(process_start_time_seconds{{instance="{place.name}"}}[10m])'
    [before] = place.watch.query(changes)
    for times in (1, 2, 3):
        place.gateway.process.kill()
        place.gateway.start()
        eventually(lambda times=times: place.watch.query(changes) == [before + times], within=30, what=f"start {times} on the page", every=0.1)


def it_is_gone(place):
    place.load.tolerant = True
    place.gateway.process.kill()


def it_is_back(place):
    place.gateway.start()
    place.gateway.wait_ready()


def is_possible(command):
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


# Limits on threads do not hold for root: that gateway is another user's, who may still write where this one does.
IS_ROOT = os.geteuid() == 0
ANOTHER_USER = ["setpriv", "--reuid=65534", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"] if IS_ROOT else []
NO_USERS = None if is_possible([*ANOTHER_USER, "prlimit", "--version"]) else "this system lets nobody run a program as another user"

NOBODY_SERVES = ("HuntgroupNoReplica", "HuntgroupModelWithoutReplica", "HuntgroupRequestsFail", "HuntgroupBatchWaits")

PLACES = [
    Place("control"),
    Place("pool", phones=4, config={"scheduler": {"no_replica_wait": "1s"}}, allowed=["HuntgroupShedding", "HuntgroupFailovers"], acts=[
        Act(("HuntgroupPoolShrinking",), half_of_the_phones_die, phones_revive, resolves=("HuntgroupPoolShrinking",)),
        Act(NOBODY_SERVES, all_phones_die, phones_revive_and_batch_ends, resolves=NOBODY_SERVES),
    ]),
    Place("relay", phones=4, options={"relay": True}, config={"scheduler": {"no_replica_wait": "1s"}}, acts=[
        Act(("HuntgroupRelayDown",), the_relay_fails, Place.heal, resolves=("HuntgroupRelayDown",)),
    ], allowed=["HuntgroupNoReplica", "HuntgroupModelWithoutReplica", "HuntgroupPoolShrinking", "HuntgroupRequestsFail", "HuntgroupShedding"]),
    Place("overload", phones=1, config={"scheduler": {"max_queued_per_slot": 24}}, acts=[
        Act(("HuntgroupQueueGrowing",), requests_pile_up),
        Act(("HuntgroupShedding",), nothing_more, requests_leave, resolves=("HuntgroupShedding", "HuntgroupQueueGrowing")),
    ], allowed=["HuntgroupRequestsFail", "HuntgroupRequestStuck"]),
    Place("slow", phones=2, options={"slots": 4, "speed": "4b"}, config={"scheduler": {"hedge": False}}, acts=[
        Act(("HuntgroupRequestStuck",), a_request_never_ends, Place.hang_up, resolves=("HuntgroupRequestStuck",)),
        Act(("HuntgroupFirstTokenLate",), phones_think_before_they_speak, phones_speak_at_once, resolves=("HuntgroupFirstTokenLate",)),
    ]),
    Place("small", phones=1, options={"speed": "0.8b"}, config={"capacity": {"every": "1s"}}, acts=[
        Act(("HuntgroupTooFewReplicas",), more_people_than_phones, people_leave, within=240),
        # A request's age counts from its arrival: it has waited before it runs.
    ], allowed=["HuntgroupFirstTokenLate", "HuntgroupRequestStuck"]),
    Place("breaking", phones=4, options={"slots": 2, "speed": "0.8b"}, acts=[
        Act(("HuntgroupFailovers", "HuntgroupWastedWork", "HuntgroupBatchLinesRetried"), answers_break_off, answers_are_whole, within=90,
            resolves=("HuntgroupFailovers", "HuntgroupBatchLinesRetried")),
        # Phones that fail often enough are put out for a while, all but a share of them.
    ], config={"health": {"soft_failures": 100, "min_samples": 1000}},
        allowed=["HuntgroupRequestsFail", "HuntgroupShedding", "HuntgroupPoolShrinking", "HuntgroupReplicaFlapping"]),
    Place("batches", phones=1, options={"speed": "0.8b"}, acts=[
        Act(("HuntgroupBatchLate",), a_batch_is_too_large_for_its_time, batch_ends, resolves=("HuntgroupBatchLate",)),
        Act(("HuntgroupBatchResultsUnstored",), the_batch_database_goes_away, the_batch_database_comes_back,
            resolves=("HuntgroupBatchResultsUnstored",)),
    ], allowed=["HuntgroupStoreFailing"]),
    # Of eight phones two may be in trouble, and the pool is as good as whole.
    Place("operator", phones=8, config={"health": {"hard_failures": 1}}, within=ANOTHER_USER if not NO_USERS else [], acts=[
        Act(("HuntgroupReplicaExpiring", "HuntgroupDeploymentEnding"), a_deployment_has_fifty_minutes_left,
            the_deployment_is_prolonged, resolves=("HuntgroupReplicaExpiring", "HuntgroupDeploymentEnding")),
        Act(("HuntgroupStoreFailing",), the_state_database_goes_away, put_back, resolves=("HuntgroupStoreFailing",)),
        Act(("HuntgroupDescriptorsScarce",), descriptors_become_scarce, descriptors_abound, skip=NO_USERS,
            resolves=("HuntgroupDescriptorsScarce",)),
        Act(("HuntgroupPanics",), the_system_gives_no_thread, skip=NO_USERS),
        Act(("HuntgroupReplicaMisconfigured",), a_key_is_changed_on_the_phone, the_key_is_right_again),
    ]),
    Place("flapping", phones=8, config={"health": {"hard_failures": 1}}, acts=[
        Act(("HuntgroupReplicaFlapping",), a_phone_comes_and_goes, the_phone_stays, within=90),
    ]),
    Place("chain", options={"chain": True}, acts=[
        Act(("HuntgroupChainUnreadable",), the_chain_goes_away, the_chain_is_back, resolves=("HuntgroupChainUnreadable",)),
    ]),
    Place("crashing", acts=[
        Act(("HuntgroupDown",), it_is_gone, it_is_back, resolves=("HuntgroupDown",)),
        Act(("HuntgroupRestarting",), it_crashes_again_and_again, resolves=("HuntgroupRestarting",)),
    ], allowed=["HuntgroupNoReplica", "HuntgroupModelWithoutReplica"]),
]
ACTS = {alert: act for place in PLACES for act in place.acts for alert in act.alerts}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """All acts, played once. On stages of their own: after what has happened here not every gateway comes to rest at once."""
    directory = tmp_path_factory.mktemp("alerts")
    stages = []

    def stage_of(name):
        (directory / name).mkdir(exist_ok=True)
        stages.append(Stage(directory / name))
        return stages[-1]

    try:
        yield play(PLACES, stage_of, directory, FACTOR, REPLACED, EVERY)
    finally:
        for stage in stages:
            stage.end()


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_fires_on_its_condition_and_not_before(played, alert):
    assert alert in ACTS, f"nothing here causes what {alert} warns of"
    act = ACTS[alert]
    if act.skip:
        pytest.skip(act.skip)
    _, ends = played
    if error := ends[act.alerts]:
        raise error


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_nothing_fires_but_what_is_wrong(played, place):
    """At `control` nothing is, all the time."""
    caused = {alert for act in place.acts for alert in act.alerts}
    assert place.fired() - caused - place.allowed == set()


def test_ordinary_requests_were_answered_beside_it_all(played):
    [control] = [place for place in PLACES if place.name == "control"]
    assert control.load.answered > 20 and not control.load.odd, control.load.odd


def test_each_act_causes_alerts_that_exist_and_each_alert_has_one():
    assert set(ACTS) == set(alerts())
    assert len(ACTS) == sum(len(act.alerts) for place in PLACES for act in place.acts), "an alert has two acts"
