"""HTTP/1 by hand: bytes out, one answer in, and what became of the connection. For requests that no client library would send."""
import json
import socket
from urllib.parse import urlsplit


class RawAnswer:
    def __init__(self, version, status, headers, body):
        self.version, self.status, self.headers, self.body = version, status, headers, body

    def header(self, name):
        """The value of a header, None without one; an error with two."""
        values = [v for k, v in self.headers if k == name.lower()]
        assert len(values) < 2, f"{name} twice: {values}"
        return values[0] if values else None

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:200]!r}>"


class Closed(ConnectionError):
    """The other side closed before a whole answer."""


class Raw:
    """One connection. `timeout` bounds every single read."""

    def __init__(self, url, timeout=10.0):
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """Sends; an other side that has already closed is not an error, its answer may still be readable."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError as error:
            raise Closed(f"reset after {self.rest[-200:]!r}") from error
        if not data:
            raise Closed(f"end of file after {self.rest[-200:]!r}")
        self.rest += data

    def _until(self, mark):
        while mark not in self.rest:
            self._more()
        head, self.rest = self.rest.split(mark, 1)
        return head

    def _exactly(self, count):
        while len(self.rest) < count:
            self._more()
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def answer(self, to="POST"):
        """Reads one answer, framed strictly as RFC 9112 has it; `to` is the method that asked."""
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ", 2)[:2]
        status = int(status)
        headers = [(k.lower(), v.strip()) for k, v in (line.split(":", 1) for line in lines[1:])]
        answer = RawAnswer(version, status, headers, b"")
        if to == "HEAD" or status < 200 or status in (204, 304):
            return answer
        length, coding = answer.header("content-length"), answer.header("transfer-encoding")
        assert not (length and coding), "an answer with two framings"
        if coding:
            assert coding == "chunked" and version == "HTTP/1.1"
            answer.body = self._chunks()
        elif length is not None:
            answer.body = self._exactly(int(length))
        else:
            answer.body = self._to_the_end()
        return answer

    def _chunks(self):
        body = b""
        while True:
            size = int(self._until(b"\r\n"), 16)
            piece = self._exactly(size)
            assert self._exactly(2) == b"\r\n"
            if not size:
                return body
            body += piece

    def _to_the_end(self):
        try:
            while True:
                self._more()
        except Closed:
            data, self.rest = self.rest, b""
            return data

    def is_closed(self, within=4.0):
        """Whether the other side ends the connection (FIN or RST) within this time, without sending another byte."""
        self.socket.settimeout(within)
        try:
            data = self.socket.recv(1)
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        assert not data and not self.rest, f"bytes after the answer: {self.rest + data!r}"
        return True


def head(method, target, headers=(), version="HTTP/1.1", host="gateway"):
    """A head as bytes. Header values may be bytes; `host=None` leaves Host out."""
    lines = [f"{method} {target} {version}".encode() if isinstance(target, str) else method.encode() + b" " + target + b" " + version.encode()]
    if host is not None:
        lines.append(b"Host: " + host.encode())
    for name, value in headers:
        lines.append(_bytes(name) + b": " + _bytes(value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _bytes(text):
    return text if isinstance(text, bytes) else str(text).encode("latin-1")
