"""Waiting for a condition under a deadline: the only way a test waits here.

A fixed sleep is either too short on a busy machine or wasted on an idle one; a condition is neither.
"""
import time


class NotYet(AssertionError):
    """The condition did not come true before the deadline."""


def eventually(check, within=5.0, what="the condition", every=0.02):
    """Calls `check` until it returns something true and returns that; raises `NotYet` after `within` seconds.

    `check` may raise `AssertionError` or `OSError` to say "not yet, because ...": the last reason is in the message.
    """
    limit, reason = time.monotonic() + within, "it stayed false"
    while True:
        try:
            seen = check()
            if seen:
                return seen
        except (AssertionError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
        if time.monotonic() >= limit:
            raise NotYet(f"{what} did not come within {within:g} s: {reason}")
        time.sleep(every)
