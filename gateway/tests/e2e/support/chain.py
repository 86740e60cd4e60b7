"""A chain of this kind as one JSON-RPC server: the storage of the pallets that huntgroup reads, and answers as a node gives them.

Everything is encoded here by hand and from the format's description (SCALE, storage keys, addresses), with nothing taken from the
gateway's own reader: if both agree, both are right or both misread the same page. The hash of names is held to the well-known key of
System.Account below. As a program it prints the values that the reader's unit tests are held to:

    cd gateway/tests/e2e && python -m support.chain
"""
import hashlib
import http.server
import json
import struct
import threading
import time

MASK = (1 << 64) - 1
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotate(value, by):
    return (value << by | value >> (64 - by)) & MASK


def xxhash64(data, seed):
    """XXH64, from its specification."""
    p1, p2, p3, p4, p5 = PRIMES

    def turn(acc, lane):
        return _rotate((acc + lane * p2) & MASK, 31) * p1 & MASK

    at = 0
    if len(data) >= 32:
        lanes = [(seed + p1 + p2) & MASK, (seed + p2) & MASK, seed, (seed - p1) & MASK]
        while at + 32 <= len(data):
            lanes = [turn(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at))]
            at += 32
        acc = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            acc = ((acc ^ turn(0, lane)) * p1 + p4) & MASK
    else:
        acc = (seed + p5) & MASK
    acc = (acc + len(data)) & MASK
    while at + 8 <= len(data):
        acc = (_rotate(acc ^ turn(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & MASK
        at += 8
    if at + 4 <= len(data):
        acc = (_rotate(acc ^ struct.unpack_from("<I", data, at)[0] * p1 & MASK, 23) * p2 + p3) & MASK
        at += 4
    for byte in data[at:]:
        acc = _rotate(acc ^ byte * p5 & MASK, 11) * p1 & MASK
    for shift, prime in ((33, p2), (29, p3), (32, 1)):
        acc = (acc ^ acc >> shift) * prime & MASK
    return acc


def twox128(text):
    return b"".join(struct.pack("<Q", xxhash64(text.encode(), seed)) for seed in (0, 1))


def item(pallet, name):
    return twox128(pallet) + twox128(name)


assert item("System", "Account").hex() == "26aa394eea5630e07c48ae0c9558cef7b99d880ec681799c0cf30e8886371da9"


def concat(part):
    """A key behind its hash: blake2_128_concat."""
    return hashlib.blake2b(part, digest_size=16).digest() + part


# Values.


def u8(n):
    return struct.pack("<B", n)


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def u128(n):
    return n.to_bytes(16, "little")


def compact(n):
    if n < 1 << 6:
        return u8(n << 2)
    if n < 1 << 14:
        return struct.pack("<H", n << 2 | 1)
    return struct.pack("<I", n << 2 | 2)


def some(value=None):
    return b"\0" if value is None else b"\1" + value


def vec(values):
    return compact(len(values)) + b"".join(values)


def text(raw):
    return compact(len(raw)) + raw


def address(account):
    """SS58 with the network's number 42."""
    body = b"\x2a" + account
    body += hashlib.blake2b(b"SS58PRE" + body).digest()[:2]
    letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, out = int.from_bytes(body, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        out = letters[digit] + out
    return out


def origin(account):
    return b"\0" + account


def schedule(start, duration, end=None, interval=None, max_start_delay=0):
    return u64(duration) + u64(start) + u64(start + 1 if end is None else end) + u64(interval or duration) + u64(max_start_delay)


def registration(when, slots=1, competing=False, allowed=None):
    strategy = b"\1" if competing else b"\0" + some(vec([b"\7" * 32 + u64(0)]) if allowed else None)
    version = b"\0" + vec([u32(0) + u32(128)])
    extra = strategy + u8(slots) + u128(10**12) + some(u128(500_000) if allowed else None) + some(version) + u8(2)
    sources = some(vec(allowed) if allowed else None)
    script = text(b"ipfs://QmV59iKibbcCadsvw8TRbsoSTUHxdvCuSLmQtiLNxyP9k3")
    modules = vec([b"\1", b"\2"])
    return script + sources + b"\0" + when + u32(1) + u32(2) + u32(3) + modules + extra


def assignment(slot=0, delay=0, fee=10**12, keys=None, index=None):
    """`keys`: the compressed P-256 key and the Ed25519 key; None: not acknowledged."""
    published = [] if keys is None else [b"\0" + text(keys[0]), b"\1" + text(b"\2" * 33), b"\2" + text(keys[1]), b"\3" + text(b"\3" * 33)]
    execution = b"\0" if index is None else b"\1" + u64(index)
    return u8(slot) + u64(delay) + u128(fee) + u8(keys is not None) + u64(1) + u64(0) + vec(published) + execution


class Chain:
    """A node. `storage` is what it has; `breaks` turns its answers into others: a function of the method and the body."""

    def __init__(self):
        self.storage, self.asked, self.breaks, self.lag, self.stopped = {}, [], None, 0, False
        self.number, self.layouts = 4_000_000, {"AcurastMarketplace": 7, "Acurast": 5}
        chain = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chain.asked.append(call["method"])
                if chain.stopped:
                    # Also on connections that are open already.
                    self.close_connection = True
                    return
                body = chain.answer(call)
                self.send_response(200)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def watched(self):
        """What a gateway's `[chain]` is that looks at it every second, for a job without phones."""
        now = int(time.time() * 1000)
        return {"rpc": self.url, "every": "1s", "jobs": [self.register(b"\xd4" * 32, 4711, registration(schedule(now, 86_400_000), slots=1))]}

    def stop(self):
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def register(self, owner, number, value):
        self.storage[item("Acurast", "StoredJobRegistration") + concat(origin(owner)) + concat(u128(number))] = value
        return f"Acurast:{address(owner)}:{number}"

    def assign(self, owner, number, processor, value):
        job = origin(owner) + u128(number)
        self.storage[item("AcurastMarketplace", "AssignedProcessors") + concat(job) + concat(processor)] = b""
        self.storage[item("AcurastMarketplace", "StoredMatches") + concat(processor) + concat(job)] = value

    def unassign(self, owner, number, processor):
        job = origin(owner) + u128(number)
        del self.storage[item("AcurastMarketplace", "AssignedProcessors") + concat(job) + concat(processor)]
        del self.storage[item("AcurastMarketplace", "StoredMatches") + concat(processor) + concat(job)]

    def _kept(self):
        now = {item("Timestamp", "Now"): u64(int((time.time() - self.lag) * 1000))}
        layouts = {item(pallet, ":__STORAGE_VERSION__:"): struct.pack("<H", n) for pallet, n in self.layouts.items()}
        return {**self.storage, **now, **layouts}

    def answer(self, call):
        method, params = call["method"], call.get("params", [])
        kept = {"0x" + key.hex(): "0x" + value.hex() for key, value in self._kept().items()}
        head = "0x" + self.number.to_bytes(32, "big").hex()
        if method == "chain_getFinalizedHead":
            result = head
        elif method == "chain_getHeader":
            result = {"parentHash": "0x" + "00" * 32, "number": hex(self.number), "stateRoot": "0x" + "00" * 32,
                      "extrinsicsRoot": "0x" + "00" * 32, "digest": {"logs": []}}
        elif method == "state_getRuntimeVersion":
            result = {"specName": "acurast-parachain", "implName": "acurast-parachain", "authoringVersion": 1, "specVersion": 13,
                      "implVersion": 1, "apis": [["0xdf6acb689907609b", 5]], "transactionVersion": 1, "stateVersion": 1}
        elif method == "state_getKeysPaged":
            front, count, after, at = [*params, None, None][:4]
            assert at == head, "everything is asked at the finalized head"
            result = sorted(key for key in kept if key.startswith(front) and (after is None or key > after))[:count]
        elif method == "state_queryStorageAt":
            keys, at = params
            assert at == head, "everything is asked at the finalized head"
            result = [{"block": at, "changes": [[key, kept.get(key)] for key in keys]}]
        else:
            return self._body({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32601, "message": "Method not found"}}, method)
        return self._body({"jsonrpc": "2.0", "id": call["id"], "result": result}, method)

    def _body(self, answer, method):
        body = json.dumps(answer).encode()
        return self.breaks(method, body) if self.breaks else body


if __name__ == "__main__":
    hour = 3_600_000
    keys = bytes([3]) + b"\x11" * 32, b"\x22" * 32
    print("ASSIGNMENT", assignment(3, 5_000, 1_030_000_000_000, keys).hex())
    print("MATCHED", assignment(0, 0, 5, None, index=2).hex())
    print("REGISTRATION", registration(schedule(1_790_000_000_000, 24 * hour), 10, allowed=[b"\1" * 32, b"\2" * 32]).hex())
    print("COMPETING", registration(schedule(1_790_000_000_000, hour, 1_790_000_000_000 + 30 * hour, 10 * hour, hour), 2, True).hex())
