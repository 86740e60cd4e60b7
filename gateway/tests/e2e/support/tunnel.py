"""A tunnel between the gateway and an engine, which loses a connection at an exact moment.

The phones' real tunnels break wherever they like; a test of what a client then sees needs to say where. So this one reads what the
engine streams, event by event, and passes each on as it came, in a chunk of its own: HTTP frames differ, bodies do not. A `Cut` looks at
every event before it is passed on and may end the connection before it, inside it, or after it.
"""
import http.client
import json
import socket
import socketserver
import threading
from urllib.parse import urlsplit

from .process import free_port

# Of the engine's answer; the tunnel frames it anew.
OWN = {"transfer-encoding", "connection", "keep-alive", "content-length"}


class Event:
    """One event of an engine's stream: its bytes with the blank line at the end, and its data read as JSON if it is some."""

    def __init__(self, raw):
        self.raw = raw
        lines = [line[5:].strip() for line in raw.split(b"\n") if line.startswith(b"data:")]
        text = b"\n".join(lines)
        try:
            self.data = json.loads(text)
        except ValueError:
            # "[DONE]", a comment, or half an event.
            self.data = {}
        self.done = text == b"[DONE]"

    @property
    def choice(self):
        return (self.data.get("choices") or [{}])[0]

    @property
    def delta(self):
        return self.choice.get("delta") or {}

    @property
    def _block(self):
        """The delta of a message's block."""
        delta = self.data.get("delta")
        return delta if isinstance(delta, dict) else {}

    def _named(self, name):
        """The delta of a response's event of this name."""
        return self.data["delta"] if self.data.get("type") == name else None

    @property
    def text(self):
        """The text in it, of whichever API."""
        own = self.delta.get("content") or self.choice.get("text")
        return own or self._block.get("text") or self._named("response.output_text.delta") or ""

    @property
    def thought(self):
        return self.delta.get("reasoning_content") or self._block.get("thinking") or self._named("response.reasoning_text.delta") or ""

    @property
    def of_call(self):
        """Whether it is a piece of a tool call."""
        arguments = self._named("response.function_call_arguments.delta") is not None
        return arguments or "tool_calls" in self.delta or "partial_json" in self._block


class Cut:
    """Where to cut: `where(event, seen)` is asked before each event of a stream with all that came before it on this connection.

    It answers None to let the event pass, or how many of its bytes still pass: 0 is before it, `len(event.raw)` after it. `times`
    connections are cut, then none; `then(tunnel)` is called at each cut, once those bytes have passed and before the connection ends.
    """

    def __init__(self, where, times=1, then=lambda tunnel: None):
        self.where, self.left, self.then, self.made = where, times, then, []
        self._lock = threading.Lock()

    def of(self, event, seen, tunnel):
        with self._lock:
            if self.left == 0:
                return None
            at = self.where(event, seen)
            if at is not None:
                self.left -= 1
                self.made.append(tunnel)
            return at


class Tunnel:
    """One tunnel to one engine; what the gateway takes for a phone."""

    def __init__(self, engine):
        # `asked`: target and body of every POST; `fetched`: the target of every GET.
        self.engine, self.cut, self.asked, self.fetched, self.stated = engine, None, [], [], {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        tunnel = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    tunnel.serve(self.request)
                except (OSError, http.client.HTTPException):
                    # Either side has left, or never came.
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True
            # An engine that has just been killed leaves many to be refused at once.
            request_queue_size = 64

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    # What stage.end() and the report of a failed test want of a member.
    @property
    def process(self):
        return self.engine.process

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def serve(self, client):
        """One request and its answer; then the connection ends, as after any stream of llama-server's."""
        source = client.makefile("rb")
        request = _read_request(source)
        if request is None:
            return
        method, target, headers, body = request
        if method == "POST":
            self.asked.append((target, json.loads(body) if body else None))
        elif method == "GET":
            self.fetched.append(target)
        parts = urlsplit(self.engine.url)
        engine = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        watch = None
        try:
            engine.request(method, target, body=body, headers=headers)
            answered = threading.Event()
            watch = threading.Thread(target=_leave_with, args=(client, engine, answered), daemon=True)
            watch.start()
            answer = engine.getresponse()
            self._pass_on(client, answer)
            answered.set()
        finally:
            engine.close()
            _close(client)

    def _pass_on(self, client, answer):
        head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        head += [f"{name}: {value}" for name, value in answer.getheaders() if name.lower() not in OWN]
        head.append("Connection: close")
        if not answer.chunked:
            body = answer.read()
            client.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode("latin-1") + body)
            return
        client.sendall("\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode("latin-1"))
        seen = []
        for event in _events(answer):
            at = self.cut.of(event, seen, self) if self.cut else None
            if at is None:
                client.sendall(_chunk(event.raw))
                seen.append(event)
                continue
            client.sendall(_chunk(event.raw[:at]))
            self.cut.then(self)
            return
        client.sendall(b"0\r\n\r\n")


def _read_request(source):
    line = source.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers = {}
    for line in iter(source.readline, b"\r\n"):
        if not line:
            return None
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip()] = value.strip()
    length = int(next((value for name, value in headers.items() if name.lower() == "content-length"), 0))
    return method, target, headers, source.read(length) if length else None


def _events(answer):
    """The events of a stream as they come; the last one may lack its end."""
    rest = b""
    # http.client's read1 gives what there is, one chunk at most.
    while piece := answer.read1(65536):
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            yield Event(event + b"\n\n")
    if not answer.isclosed():
        raise http.client.IncompleteRead(rest)
    if rest:
        yield Event(rest)


def _chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def _leave_with(client, engine, answered):
    """Hangs up on the engine when the gateway hangs up: an engine must see its client leave."""
    try:
        while client.recv(4096):
            pass
    except OSError:
        pass
    if not answered.is_set() and engine.sock is not None:
        try:
            engine.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _close(client):
    try:
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
