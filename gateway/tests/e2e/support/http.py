"""A small HTTP client that hides nothing: one request on one fresh connection, status, headers and body as they came.

The official clients retry, pool and reinterpret; where a test is about what the gateway sent, it asks with this.
"""
import http.client
import json as jsonlib
import time
from urllib.parse import urlsplit


class Answer:
    """A whole answer. `seconds` is from before the connect to the last byte."""

    def __init__(self, status, headers, body, seconds):
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds

    def json(self):
        return jsonlib.loads(self.body)

    @property
    def error(self):
        """The error object, after checking that it has exactly the four keys of OpenAI's shape."""
        whole = self.json()
        assert set(whole) == {"error"}, f"not an error answer: {self.body[:300]!r}"
        assert set(whole["error"]) == {"message", "type", "param", "code"}, f"not OpenAI's shape: {whole}"
        assert self.headers["content-type"].startswith("application/json"), self.headers["content-type"]
        return whole["error"]

    def __repr__(self):
        return f"<{self.status} {self.body[:400]!r}>"


def connection(url, timeout):
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout), parts


def request(method, url, json=None, body=None, headers=None, timeout=30.0):
    """One request; raises `OSError` or `http.client.HTTPException` when no whole answer came."""
    begun = time.monotonic()
    link, parts = connection(url, timeout)
    sent = dict(headers or {})
    if json is not None:
        body = jsonlib.dumps(json).encode()
        sent.setdefault("content-type", "application/json")
    try:
        link.request(method, parts.path + ("?" + parts.query if parts.query else ""), body=body, headers=sent)
        answer = link.getresponse()
        content = answer.read()
        return Answer(answer.status, answer.headers, content, time.monotonic() - begun)
    finally:
        link.close()


class Stream:
    """A streamed answer, read event by event. Leave the `with` block early to hang up on the gateway."""

    def __init__(self, url, json, headers=None, timeout=30.0):
        self.begun = time.monotonic()
        self._link, parts = connection(url, timeout)
        self.comments = []          # (seconds after the begin, text) of every comment line
        self.raw = b""
        self._link.request(
            "POST", parts.path, body=jsonlib.dumps(json).encode(),
            headers={"content-type": "application/json", **(headers or {})},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._link.close()

    def head(self):
        """Waits for the head of the answer; returns the status."""
        self._answer = self._link.getresponse()
        self.status, self.headers = self._answer.status, self._answer.headers
        self.head_seconds = time.monotonic() - self.begun
        return self.status

    def events(self):
        """Yields the `data` of each event: an object, or the text "[DONE]". Ends with the answer's own end; raises when it was cut."""
        if not hasattr(self, "_answer"):
            self.head()
        data = []
        for line in self._lines():
            if line.startswith(":"):
                self.comments.append((time.monotonic() - self.begun, line[1:].strip()))
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                text = "\n".join(data)
                data = []
                yield text if text == "[DONE]" else jsonlib.loads(text)

    def _lines(self):
        rest = b""
        for piece in self._pieces():
            self.raw += piece
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r").decode()

    def _pieces(self):
        """The body as it comes. The chunks are read here: http.client takes an end of file in the middle for the end."""
        source = self._answer.fp
        if not self._answer.chunked:
            yield self._answer.read()
            return
        while True:
            size = source.readline()
            if not size.endswith(b"\r\n"):
                raise http.client.IncompleteRead(size)
            size = int(size, 16)
            piece = source.read(size + 2)
            if len(piece) < size + 2:
                raise http.client.IncompleteRead(piece)
            if size == 0:
                return
            yield piece[:size]


def text_of(events):
    """The text of the first choice of a streamed chat or completion."""
    parts = []
    for event in events:
        for choice in (event.get("choices") or []) if isinstance(event, dict) else []:
            parts.append((choice.get("delta") or {}).get("content") or choice.get("text") or "")
    return "".join(parts)


def finish_of(events):
    """The finish reasons of a streamed answer, in order."""
    return [
        choice["finish_reason"]
        for event in events if isinstance(event, dict)
        for choice in event.get("choices") or [] if choice.get("finish_reason")
    ]
