"""Fake phones: the program `fakephone` and its control port."""
import hashlib

from . import http
from .deadline import eventually
from .gateway import binaries
from .process import Process, free_port


def expected_text(message, tokens, model="tiny"):
    """What a fake phone answers to `message` in `tokens` tokens: a digest of the message, the model, the message's words over and over.

    So an answer shows by itself whether it is whole and belongs to its request.
    """
    words = message.split() or ["silence"]
    said = ["#" + hashlib.sha256(message.encode()).hexdigest()[:8], model]
    said += [words[i % len(words)] for i in range(tokens)]
    return " ".join(said[:tokens])


class Phone:
    """One fake phone: its address, and what can be asked of it behind the gateway's back."""

    def __init__(self, fleet, shown):
        self._fleet, self.id, self.url = fleet, shown["id"], shown["url"].rstrip("/")
        self.stated = {}

    def fault(self, fault, next=None, on=None, **fields):
        """Orders a fault (see fakephone's `Fault`), for the `next` so many requests or for good; `on` work, probes or all."""
        order = {"fault": fault, **fields, **({"next": next} if next else {}), **({"on": on} if on else {})}
        answer = self._fleet.control("POST", f"/phones/{self.id}/fault", order)
        assert answer.status < 300, answer
        return self

    def heal(self):
        return self.fault("none")

    def forget(self):
        """Sets the counters back and forgets the requests."""
        answer = self._fleet.control("POST", f"/phones/{self.id}/reset-stats")
        assert answer.status < 300, answer

    def show(self):
        answer = self._fleet.control("GET", f"/phones/{self.id}")
        assert answer.status == 200, answer
        return answer.json()

    def stats(self):
        return self.show()["stats"]

    def requests(self):
        """Of the last sixteen requests those that were no probes, as they came: method, target, headers, body, its hash."""
        answer = self._fleet.control("GET", f"/phones/{self.id}/requests")
        assert answer.status == 200, answer
        return [one for one in answer.json() if one["method"] == "POST"]


class Phones(list):
    """A fleet in one process. Options are fakephone's flags, with underscores."""

    def __init__(self, log, count, **options):
        super().__init__()
        self.control_url = f"http://127.0.0.1:{free_port()}"
        argv = [binaries / "fakephone", "--phones", count, "--control", self.control_url.removeprefix("http://")]
        for name, value in options.items():
            argv += ["--" + name.replace("_", "-")] + ([] if value is True else [value])
        self.process = Process(argv, log)
        shown = eventually(self._listed, within=20, what="the fake phones")
        assert len(shown) == count
        self.extend(Phone(self, one) for one in shown)

    def _listed(self):
        if not self.process.alive:
            raise RuntimeError(f"fakephone ended with {self.process.code}:\n{self.process.tail()}")
        listed = self.control("GET", "/phones").json()
        return listed if isinstance(listed, list) else listed["phones"]

    def control(self, method, path, json=None):
        return http.request(method, self.control_url + path, json=json, timeout=10)

    def stats(self):
        """Sums over all phones."""
        return self.control("GET", "/stats").json()

    def stop(self):
        self.process.kill()
