#!/usr/bin/env python3
"""What it costs the gateway to pass an event of a stream on, beside nginx in the same run.

    loadtest/relay_cost.py --gateway target/release/huntgroup --nginx nginx

Phones that only write events, and clients that only read them, are played here, in processes of their own. In turn they get
nginx (buffering off, connections kept) and the gateway between them, both with as many threads, and every stream is checked to
have come whole. Measured is what the kernel says all threads of the server ran for between two moments in the middle of the
streams, over the events of that time: CPU time, so neighbours' load matters little. Needs Linux and nothing but Python; exits
with 1 if a stream was not whole, or the gateway took more than `--within` times nginx's.
"""
import argparse
import asyncio
import json
import multiprocessing
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RAMP_S = 2.0
SETTLE_S = 1.5
# As llama-server writes them: 250 bytes.
HEAD = b'data: {"choices":[{"finish_reason":%s,"index":0,"delta":%s}],"created":1764500000,'
ASKED = b'{"model":"relayed","stream":true,"messages":[{"role":"user","content":"Go on."}]}'
FIELDS = b"host: relay\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(ASKED)
TAIL = (
    b'"id":"chatcmpl-5QnQ8xM3wV7dT1kZ0pLrYcJf4aBsEuGh","model":"relayed","system_fingerprint":"b7231-4d3a1b2c",'
    b'"object":"chat.completion.chunk"}\n\n'
)
EVENT = HEAD % (b"null", b'{"content":" word"}') + TAIL
LAST = HEAD % (b'"stop"', b"{}") + TAIL + b"data: [DONE]\n\n"
PROBES = {
    "/health": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": "relayed", "object": "model"}]},
}


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(reader, writer, args):
    """One connection to a phone."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            lengths = [line[15:] for line in head.split("\r\n") if line.startswith("content-length:")]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            if head.startswith("post"):
                await write_stream(writer, args)
                continue
            answer = PROBES.get(head.split()[1].split("?")[0])
            body = json.dumps(answer or {"error": {"message": "not found"}}).encode()
            status = b"200 OK" if answer else b"404 Not Found"
            kind = b"content-type: application/json\r\ncontent-length: %d" % len(body)
            writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, kind, body))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def write_stream(writer, args):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(args.events):
        writer.write(chunk(EVENT))
        await writer.drain()
        due += 1 / args.rate
        await asyncio.sleep(due - loop.time())
    writer.write(chunk(LAST) + b"0\r\n\r\n")
    await writer.drain()


def phones(args, ports):
    async def main():
        handler = lambda reader, writer: serve(reader, writer, args)  # noqa: E731
        servers = [await asyncio.start_server(handler, "127.0.0.1", 0, backlog=1024) for _ in range(args.phones)]
        ports.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.Event().wait()

    asyncio.run(main())


async def ask(port, after_s, args):
    """One client: whether its stream came whole."""
    await asyncio.sleep(after_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n%b\r\n%b" % (FIELDS, ASKED))
    answer = await reader.read(-1)
    writer.close()
    return answer.startswith(b"HTTP/1.1 200") and answer.count(b'" word"') == args.events and b"data: [DONE]" in answer


def clients(port, args, result):
    async def main():
        asked = [ask(port, RAMP_S * n / args.streams, args) for n in range(args.streams)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        result.send(sum(answer is not True for answer in answers))

    asyncio.run(main())


def nginx(args, ports, port, folder):
    servers = "".join(f"server 127.0.0.1:{phone};" for phone in ports)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes {args.threads}; pid {folder}/pid; error_log {folder}/log error;"
        f"events {{ worker_connections 8000; }} http {{ access_log off; {places}"
        f"upstream phones {{ least_conn; {servers} keepalive {args.streams}; }}"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://phones; proxy_http_version 1.1;"
        'proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 300s; } } }'
    )
    return [args.nginx, "-p", folder, "-c", folder / "nginx.conf"]


def gateway(args, ports, port, folder):
    slots = -(-args.streams // len(ports)) + 1
    text = (
        f'[server]\nlisten = ["127.0.0.1:{port}"]\nauth = "none"\nthreads = {args.threads}\n'
        f"max_connections_per_address = {2 * args.streams}\n"
        '[admin]\nlisten = "127.0.0.1:0"\n[store]\npath = ":memory:"\n[pool]\nallow_private = true\nallow_http = true\n'
        '[scheduler]\npolicy = "least_busy"\n[telemetry]\nlog_level = "warn"\naccess_log = false\n'
    )
    for phone in ports:
        text += f'[[replicas]]\nurl = "http://127.0.0.1:{phone}"\nmodels = ["relayed"]\nslots = {slots}\n'
    (folder / "huntgroup.toml").write_text(text)
    return [args.gateway, "serve", "--config", folder / "huntgroup.toml"]


def family(pid):
    """A process and its children."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def ran_s(pid):
    """Seconds that all threads of a family ran."""
    files = [file for member in family(pid) for file in pathlib.Path(f"/proc/{member}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def memory_kib(pid):
    """Memory of a family, shared pages in proportion."""
    lines = [line for member in family(pid) for line in open(f"/proc/{member}/smaps_rollup") if line.startswith("Pss:")]
    return sum(int(line.split()[1]) for line in lines)


def wait_until_ready(server, port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            first = asyncio.run(asyncio.wait_for(first_bytes(port), 5))
            if first.startswith(b"HTTP/1.1 200"):
                return time.sleep(SETTLE_S)
        except (OSError, asyncio.TimeoutError):
            pass
        time.sleep(0.1)
    raise SystemExit(f"the server does not answer on port {port}; it ended with {server.poll()}")


async def first_bytes(port):
    """The beginning of an answer; the rest is left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n%b\r\n%b" % (FIELDS, ASKED))
    answer = await reader.read(64)
    writer.close()
    return answer


def measure(command, args, ports):
    """Microseconds an event, KiB a stream, streams that were not whole."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = subprocess.Popen([str(part) for part in command(args, ports, port, pathlib.Path(folder))])
        try:
            wait_until_ready(server, port)
            rest = memory_kib(server.pid)
            ours, theirs = multiprocessing.Pipe()
            playing = multiprocessing.Process(target=clients, args=(port, args, theirs))
            playing.start()
            time.sleep(RAMP_S + SETTLE_S)
            begun, ran = time.monotonic(), ran_s(server.pid)
            time.sleep(args.seconds)
            used, passed = ran_s(server.pid) - ran, time.monotonic() - begun
            kib = (memory_kib(server.pid) - rest) / args.streams
            broken = ours.recv()
            playing.join()
            return used * 1e6 / (passed * args.rate * args.streams), kib, broken
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default="target/release/huntgroup", help="program of the gateway, a release build")
    parser.add_argument("--nginx", default="nginx", help="program of nginx")
    parser.add_argument("--streams", type=int, default=500, help="streams at once")
    parser.add_argument("--rate", type=float, default=10, help="events a second of each")
    parser.add_argument("--phones", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2, help="that serve, of each server")
    parser.add_argument("--seconds", type=float, default=8, help="measured of each play")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--within", type=float, default=float("inf"), help="most that the ratio of the medians may be")
    args = parser.parse_args()
    args.events = int((RAMP_S + SETTLE_S + args.seconds + 2) * args.rate)
    ours, theirs = multiprocessing.Pipe()
    upstream = multiprocessing.Process(target=phones, args=(args, theirs), daemon=True)
    upstream.start()
    ports = ours.recv()
    plays = {nginx: [], gateway: []}
    for _ in range(args.repetitions):
        for server, measured in plays.items():
            measured.append(measure(server, args, ports))
    print(f"{args.streams} streams, {args.rate:g} events a second each, {len(EVENT)} bytes; medians of {args.repetitions}")
    print(f"{'':10}{'µs an event':>14}{'least to most':>18}{'KiB a stream':>14}{'not whole':>11}")
    cost = {}
    for server, measured in plays.items():
        spent = [play[0] for play in measured]
        cost[server] = statistics.median(spent)
        spread, memory = f"{min(spent):.1f} to {max(spent):.1f}", statistics.median(play[1] for play in measured)
        broken = sum(play[2] for play in measured)
        print(f"{server.__name__:10}{cost[server]:14.1f}{spread:>18}{memory:14.1f}{broken:11}")
    ratio = cost[gateway] / cost[nginx]
    print(f"gateway over nginx: {ratio:.2f}")
    whole = all(play[2] == 0 for measured in plays.values() for play in measured)
    sys.exit(0 if whole and ratio <= args.within else 1)


if __name__ == "__main__":
    main()
