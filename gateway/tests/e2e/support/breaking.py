"""Pairs of a gateway and engines behind tunnels that cut, and the moments at which they do."""
from .tunnel import Cut


def tunnels_to(stage, model, count=2, **options):
    return [stage.tunnel(stage.llama(model=model, **options)) for _ in range(count)]


class Pair:
    """A gateway over engines of one model, and the cut that all their tunnels look for."""

    def __init__(self, gateway, tunnels):
        self.gateway, self.tunnels = gateway, tunnels

    def cut(self, where, **options):
        cut = Cut(where, **options)
        for tunnel in self.tunnels:
            tunnel.cut, tunnel.asked[:], tunnel.fetched[:] = cut, [], []
        return cut

    def asked(self):
        """The bodies of all requests for text since the last cut was ordered."""
        # What a probe asks has no prompt of a client's.
        prompts = {"messages", "prompt", "input"}
        return [body for tunnel in self.tunnels for _, body in tunnel.asked if body and prompts & set(body)]

    def carried_on(self):
        """The bodies that ask an engine to carry on a text or thoughts that were given."""
        return [body for body in self.asked() if body.get("continue_final_message")]

    def continuations(self, **labels):
        return self.gateway.metrics().sum("huntgroup_continuations_total", **labels)


# Moments. Each says how many bytes of an event still pass, or None: not here.

def after(kind, number):
    """After the event of this number that has text, a thought or a piece of a call; 0: before the first."""
    def where(event, seen):
        if not getattr(event, kind) or sum(1 for one in seen if getattr(one, kind)) + 1 != max(number, 1):
            return None
        return len(event.raw) if number else 0

    return where


def after_text(number):
    return after("text", number)


def inside_text(number, at=lambda raw, text: raw.index(text) + len(text) // 2):
    """Inside the event with the text of this number: in the middle of its word, or wherever `at` says."""
    def where(event, seen):
        if event.text and sum(1 for one in seen if one.text) + 1 == number:
            return at(event.raw, event.text.encode())
        return None

    return where


def inside_a_character(event, seen):
    """After the first byte of the first character that has several, once three words are out."""
    first = next((at for at, byte in enumerate(event.raw) if byte >= 0x80), None)
    return first + 1 if first is not None and sum(1 for one in seen if one.text) >= 3 else None


def after_finish(event, seen):
    return len(event.raw) if event.choice.get("finish_reason") else None


def before_done(event, seen):
    return 0 if event.done else None


def in_prefill(event, seen):
    progress = event.data.get("prompt_progress")
    return len(event.raw) if progress and 0 < progress["processed"] < progress["total"] else None
