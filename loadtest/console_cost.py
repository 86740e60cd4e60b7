#!/usr/bin/env python3
"""What the console costs the browser at a thousand phones: its opening, and its frames while requests run.

    .venv-e2e/bin/python loadtest/console_cost.py --gateway target/release/huntgroup

A real gateway over fake phones (one process of them), a headless Chromium, nothing between them. Measured is what Chromium's own trace says of
the page's main thread: how long its tasks ran on a core (what a neighbour took of the clock is not in it), and beside it the time by the clock.
Opened is with an empty cache, and looked at are the first seconds. `--files` takes the page's files from the sources instead of the program,
so that a change can be measured without building it.
"""
import argparse
import asyncio
import collections
import json
import multiprocessing
import pathlib
import sys
import tempfile
import time

root = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root / "gateway" / "tests" / "e2e"))
from support import gateway as under_test, phones as fleet  # noqa: E402
from support.browser import FRAMES, Browser, assert_untroubled  # noqa: E402
from support.gateway import ADMIN_TOKEN, Gateway, replica  # noqa: E402

CATEGORIES = ["toplevel", "devtools.timeline", "__metadata"]
LONG_MS = 50


class Trace:
    """Chromium's trace of a page, from its making to `tasks()`."""

    def __init__(self, page):
        self._page, self._session, self._events, self._done = page, page.context.new_cdp_session(page), [], False
        self._session.on("Tracing.dataCollected", lambda data: self._events.extend(data["value"]))
        self._session.on("Tracing.tracingComplete", lambda _: setattr(self, "_done", True))
        self._session.send("Tracing.start", {"traceConfig": {"includedCategories": CATEGORIES, "recordMode": "recordAsMuchAsPossible"}, "transferMode": "ReportEvents"})

    def tasks(self):
        """Of the busiest main thread of a page: `[(ms on a core, ms by the clock, what most of it was)]`, the longest first."""
        self._session.send("Tracing.end")
        while not self._done:
            self._page.wait_for_timeout(20)
        mains = {(e["pid"], e["tid"]) for e in self._events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
        by_thread = collections.defaultdict(list)
        for event in self._events:
            if event.get("ph") == "X" and (event["pid"], event["tid"]) in mains:
                by_thread[event["pid"], event["tid"]].append(event)
        events = max(by_thread.values(), key=lambda found: sum(e.get("tdur", 0) for e in found))
        # The same task has two names; the outer one counts.
        tasks = [e for e in events if e["name"] in ("RunTask", "ThreadControllerImpl::RunTask")]
        parts = [e for e in events if e["name"] not in ("RunTask", "ThreadControllerImpl::RunTask")]
        tasks.sort(key=lambda e: (e["ts"], -e["dur"]))
        found, end = [], 0
        for task in tasks:
            if task["ts"] < end:
                continue
            end = task["ts"] + task["dur"]
            spent = collections.Counter()
            for part in parts:
                if task["ts"] <= part["ts"] < end:
                    spent[part["name"]] += part.get("tdur", 0) / 1e3
            found.append((task.get("tdur", 0) / 1e3, task["dur"] / 1e3, ", ".join(f"{name} {ms:.0f}" for name, ms in spent.most_common(7) if ms > 1)))
        return sorted(found, reverse=True)


def say(what, tasks, why):
    long = [one for one in tasks if one[0] > LONG_MS]
    print(f"{what}: {sum(t for t, _, _ in tasks):.0f} ms on a core in {len(tasks)} tasks; longest {', '.join(f'{t:.0f}' for t, _, _ in tasks[:5])} ms "
          f"(by the clock {max(w for _, w, _ in tasks):.0f}); {len(long)} over {LONG_MS} ms", flush=True)
    for one in long if why else ():
        print("   %.0f ms (%.0f): %s" % one)


async def client(port, number):
    """One who asks, reads, and asks again."""
    body = json.dumps({"model": "words", "messages": [{"role": "user", "content": f"please tell {number} " * 40}], "max_tokens": 60, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {under_test.KEY}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((head + body).encode())
            while await reader.read(1 << 16):
                pass
            writer.close()
        except OSError:
            await asyncio.sleep(0.5)


async def clients(port, count):
    await asyncio.gather(*(client(port, i) for i in range(count)))


def from_sources(page):
    """Gives the page its files from the sources; the policy stays the program's."""
    folder = root / "gateway" / "src" / "admin" / "console"

    def give(route):
        name = route.request.url.rsplit("/", 1)[1] or "index.html"
        route.fulfill(response=route.fetch(), body=(folder / name).read_bytes())

    page.route(lambda url: url.rsplit("/", 1)[1] in {"", *(one.name for one in folder.iterdir())}, give)


def open_page(browser, gateway, args, width, height):
    page = browser.open(gateway.admin + "/favicon.svg", width, height, token=ADMIN_TOKEN)
    if args.files:
        from_sources(page)
    trace = Trace(page)
    begun = time.monotonic()
    page.goto(gateway.admin)
    page.locator("#verdicts li strong").first.wait_for()
    while page.evaluate("document.body.classList.contains('blank')"):
        page.wait_for_timeout(10)
    told = time.monotonic() - begun
    return page, trace, told


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gateway", required=True, help="the built program; fakephone is beside it")
    parser.add_argument("--phones", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--opens", type=int, default=3)
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--why", action="store_true", help="what long tasks did")
    args = parser.parse_args()
    under_test.binaries = pathlib.Path(args.gateway).resolve().parent
    fleet.binaries = under_test.binaries
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        phones = fleet.Phones(folder / "phones.log", args.phones, speed="4b", slots=2, model="words", mix=True)
        stated = [replica(one.url) for one in phones]
        gateway, browser = Gateway(folder / "gateway", {"replicas": stated, "health": {"interval": "20s", "timeout": "5s"}}), None
        try:
            gateway.wait_ready(int(args.phones * 0.98), within=180)
            browser = Browser()
            for _ in range(args.opens):
                page, trace, told = open_page(browser, gateway, args, args.width, args.height)
                page.wait_for_timeout(4000)
                say(f"opening ({told:.1f} s until it is told)", trace.tasks(), args.why)
                assert_untroubled(page)
                browser.end_pages()
            run(gateway, browser, args)
        finally:
            if browser:
                browser.stop()
            gateway.process.kill()
            phones.stop()


def run(gateway, browser, args):
    asking = multiprocessing.get_context("spawn").Process(target=ask, args=(gateway.port, args.clients), daemon=True)
    asking.start()
    time.sleep(8)
    try:
        page, trace, told = open_page(browser, gateway, args, args.width, args.height)
        page.wait_for_timeout(3000)
        say(f"opening under load ({told:.1f} s until it is told)", trace.tasks(), args.why)
        trace = Trace(page)
        frames = page.evaluate(FRAMES, args.seconds)
        say(f"{args.clients} clients, {args.seconds:.0f} s", trace.tasks(), args.why)
        print(f"   frames by the clock: {len(frames)}, median {frames[len(frames) // 2]:.1f} ms, 99 % {frames[int(len(frames) * 0.99)]:.1f}, worst {frames[-1]:.1f}; "
              f"busy {page.locator('#n-busy').inner_text()}", flush=True)
        assert_untroubled(page)
    finally:
        asking.terminate()
        asking.join()


def ask(port, count):
    asyncio.run(clients(port, count))


if __name__ == "__main__":
    main()
