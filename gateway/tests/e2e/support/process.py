"""A child process with its log in a file, and free ports for it.

Ports come from below the ephemeral range (32768 and up): there an outgoing connection may hold the port that a listener is about to
take. Each xdist worker has a range of its own, so that two workers never try one port.
"""
import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

_worker = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0)
_span = 2000
_first = 20000 + _span * (_worker % 6)
_next = itertools.cycle(range(_first + os.getpid() % 500, _first + _span))


def free_port():
    """A TCP port on the loopback address that nothing listens on."""
    for port in itertools.islice(_next, _span):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port between %d and %d" % (_first, _first + _span))


def may_mount():
    """Whether a process may have a view of the files of its own."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0


class Process:
    """A running child. `log` is the file that both its outputs go to."""

    def __init__(self, argv, log, env=None, cwd=None):
        self.log = pathlib.Path(log)
        self.name = pathlib.Path(str(argv[0])).name
        with open(self.log, "ab") as out:
            self._child = subprocess.Popen(
                [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd
            )

    @property
    def pid(self):
        return self._child.pid

    @property
    def code(self):
        """The exit code, or None while the process lives; negative for a signal."""
        return self._child.poll()

    @property
    def alive(self):
        return self.code is None

    def send(self, number):
        if self.alive:
            self._child.send_signal(number)

    def kill(self):
        """SIGKILL, and waits until the kernel has closed the process's sockets."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        return self._child.wait(10)

    def stop(self, within=10.0):
        """SIGTERM, then SIGKILL after `within` seconds. Returns the seconds it took and the exit code."""
        begun = time.monotonic()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self._child.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begun, self.code

    def wait(self, within):
        """Waits for the end; returns the exit code, or None when it still runs after `within` seconds."""
        try:
            return self._child.wait(within)
        except subprocess.TimeoutExpired:
            return None

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines=60):
        return "\n".join(self.text().splitlines()[-lines:])
