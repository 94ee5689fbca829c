"""States and actions of :mod:`model.published.world` in the words of the article, for traces."""

from typing import TYPE_CHECKING

from model.engine.explorer import Violation
from model.published.machines import Client, Fragment, Message, Rules, members, taken

if TYPE_CHECKING:
    from model.published.world import Action, Published, World


def action_text(rules: Rules, state: "World", action: "Action") -> str:
    """One line."""
    kind, what, old, new = action
    if isinstance(what, Message):
        return _message(rules, state, kind, what)
    client, name = state.clients[what], f"c{what + 1}"
    where = "for itself" if client.in_recovery else "in the metadata"
    texts = {
        "start": lambda: f"starts term {state.ledger.term + 1}: IN_RECOVERY",
        "open": lambda: f"changes term {client.term} to OPEN",
        "add": lambda: f"sends add {{{client.lap + 1}, {client.values[0]}}} to {_set(client.ensemble)}",
        "retry": lambda: f"sends b{old + 1} again what it has not confirmed",
        "join": lambda: f"asks b{new + 1} to join from entry {client.lafr + 1}, in the place of b{old + 1}",
        "change": lambda: f"changes the ensemble from entry {client.lafr + 1} {where}: b{new + 1} for b{old + 1}",
    }
    return f"{name} {texts[kind]()}"


def _message(rules: Rules, state: "World", kind: str, message: Message) -> str:
    name, bookie = f"c{message.client + 1}", f"b{message.bookie + 1}"
    what = request_text(message) + (" again" if message.connection else "")
    if kind == "lose":
        return f"{name} -> {bookie}: {what}: lost; {name} has a timeout"
    if kind == "repeat":
        return f"{name} -> {bookie}: {what}: {name} has a timeout, and sends it again on a new connection"
    after, answer = taken(rules, state.bookies[message.bookie], message)
    if message.kind == "fence" and answer == "ok":
        answer = f"LAC {_id(after.lac)}, LAFR {_id(after.lafr)}"
    return f"{name} -> {bookie}: {what}: {answer}"


def told(violation: Violation) -> str:
    """What breaks, and the steps to it: as docs/model.md prints it, which tells the first state in words."""
    steps = [line for line in violation.trace if not line.startswith("    ")]
    return "\n".join((violation.what, *steps))


def request_text(message: Message) -> str:
    """A request."""
    if message.kind == "fence":
        return f"fence with term {message.term}"
    if message.kind == "read":
        return f"recovery read of {message.entry}"
    if message.kind == "join":
        return f"join from entry {message.entry}"
    flag = ", truncate" if message.truncate else ""
    told = f", LAC {message.lac}" if message.lac >= 0 else ""
    return f"add {{{message.entry}, {message.value}{flag}}}{told}"


def state_lines(setting: "Published", state: "World") -> list[str]:
    """What metadata, bookies and clients know."""
    ledger = state.ledger
    status = "OPEN" if ledger.is_open else "IN_RECOVERY"
    lines = [f"metadata: {status}, term {ledger.term}, {_fragments(ledger.fragments)}"]
    for at, bookie in enumerate(state.bookies):
        entries = " ".join(f"{{{entry}, {value}}}" for entry, value in bookie.entries) or "no entry"
        hangs = ", hangs" if at < setting.hung else ""
        lines.append(f"b{at + 1}: {entries}; term {bookie.term}, LAC {_id(bookie.lac)}, LAFR {_id(bookie.lafr)}{hangs}")
    lines += [f"c{at + 1}: {_client(client)}" for at, client in enumerate(state.clients)]
    return lines


def _client(client: Client) -> str:
    if client.status in ("WAITING", "WITHDRAWN"):
        return {"WAITING": "has not started", "WITHDRAWN": "is gone"}[client.status]
    status = "OPEN" if client.status == "OPEN" else "IN_RECOVERY"
    pending = " ".join(f"{{{add.entry}, {add.value}}}" for add in client.pending) or "nothing"
    return (
        f"{status} in term {client.term}, LAC {_id(client.lac)}, LAFR {_id(client.lafr)}, pending {pending}"
        f", {_fragments(client.fragments)}"
    )


def _fragments(fragments: tuple[Fragment, ...]) -> str:
    return " ".join(f"[{part.first}: {_set(part.ensemble)}]" for part in fragments)


def _set(mask: int) -> str:
    return " ".join(f"b{at + 1}" for at in members(mask))


def _id(entry: int) -> str:
    return "none" if entry < 0 else str(entry)
