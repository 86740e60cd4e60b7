#!/usr/bin/env python3
"""What the live feed costs the gateway, at a thousand replicas with a thousand requests running.

    loadtest/watch_cost.py --gateway target/release/huntgroup

Phones and clients are those of relay_cost.py, at so few events that the gateway has little else to do. Measured is what the kernel
says all threads of the gateway ran for, without a reader, with one and with eight, in turn; CPU time, so neighbours' load matters
little. Every reader is checked to have got the whole pool, and some of what changes. Needs Linux and nothing but Python.
"""
import argparse
import asyncio
import json
import multiprocessing
import pathlib
import subprocess
import tempfile
import time

import relay_cost as base

READERS = (0, 1, 8)


async def read(port, seconds):
    """Bytes and pieces of one reader, and how many replicas its pool had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    writer.write(b"GET /admin/watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"event: pool\ndata: ")
    pool = json.loads(await reader.readuntil(b"\n\n"))
    got, pieces, end = 0, 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            piece = await asyncio.wait_for(reader.readuntil(b"event: requests\n"), left)
        except asyncio.TimeoutError:
            break
        got, pieces = got + len(piece), pieces + 1
    writer.close()
    return got, pieces, len(pool["replicas"])


def readers(port, count, seconds, result):
    async def main():
        result.send(await asyncio.gather(*(read(port, seconds) for _ in range(count))))

    asyncio.run(main())


def watched(server, admin, count, args):
    """Milliseconds of CPU a second, and what the readers got."""
    ours, theirs = multiprocessing.Pipe()
    reading = multiprocessing.Process(target=readers, args=(admin, count, args.seconds + 2 * base.SETTLE_S, theirs))
    reading.start()
    time.sleep(base.SETTLE_S)
    begun, ran = time.monotonic(), base.ran_s(server.pid)
    time.sleep(args.seconds)
    used, passed = base.ran_s(server.pid) - ran, time.monotonic() - begun
    got = ours.recv()
    reading.join()
    assert all(pieces > 1 and pool == args.phones for _, pieces, pool in got), got
    return used * 1e3 / passed, got


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--phones", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.streams, args.threads, args.rate = args.phones, 2, 0.2
    args.events = int(args.rate * 600)
    ours, theirs = multiprocessing.Pipe()
    playing = multiprocessing.Process(target=base.phones, args=(args, theirs), daemon=True)
    playing.start()
    ports = ours.recv()
    with tempfile.TemporaryDirectory() as folder:
        port, admin = base.free_port(), base.free_port()
        command = base.gateway(args, ports, port, pathlib.Path(folder))
        config = pathlib.Path(folder, "huntgroup.toml")
        text = config.read_text().replace('[admin]\nlisten = "127.0.0.1:0"', f'[admin]\nlisten = "127.0.0.1:{admin}"')
        config.write_text(text)
        server = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            base.wait_until_ready(server, port)
            ours, theirs = multiprocessing.Pipe()
            asking = multiprocessing.Process(target=base.clients, args=(port, args, theirs), daemon=True)
            asking.start()
            time.sleep(base.RAMP_S + base.SETTLE_S)
            for _ in range(args.rounds):
                for count in READERS:
                    cost, got = watched(server, admin, count, args)
                    rate = sum(one[0] for one in got) / max(count, 1) / (args.seconds + 2 * base.SETTLE_S)
                    print(f"{count} readers: {cost:6.1f} ms of CPU a second, {rate / 1024:6.1f} KiB/s a reader", flush=True)
            asking.terminate()
        finally:
            server.kill()
            server.wait()
            playing.terminate()


if __name__ == "__main__":
    main()
