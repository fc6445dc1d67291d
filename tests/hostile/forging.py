"""Forged certificates: headers that claim what their releases do not support."""

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import dpflows
from dpflows.errors import InputError
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import event_from_dict
from hostile.mutating import Content, opened, sealed

#: What another machine's rounding may change.
NOISE = 1e-6
ESCAPES = [
    "\n(0.01, 1e-9)-differential privacy",
    "\x1b[2J\x1b[H",
    "\u202eprivate",
    "\u2028x",
    "\x85",
]


def guarantees(header: dict[str, Any]) -> list[dict[str, Any]]:
    """The guarantees of a file: its own, and that of the density inside."""
    inner = header.get("density", {}).get("guarantee")
    return [header["guarantee"], *([inner] if inner else [])]


def forged(chance: random.Random, content: bytes) -> tuple[str, bytes]:
    """The name of a forgery, and a file with a digest that fits it."""
    inside = opened(content)
    name = chance.choice(list(WAYS))
    for promise in guarantees(inside.header):
        WAYS[name](random.Random(chance.random()), promise, inside.header)
    return name, sealed(inside)


def _epsilon(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    promise["epsilon"] *= chance.choice([0.0, 1e-300, 1e-3, 0.5, 0.99, 0.99999, 1.0, 1.5])


def _replaced(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    promise["replace_one_epsilon"] = chance.choice([0.0, 1e-9, 0.5, promise["epsilon"], None])


def _dropped(chance: random.Random, promise: dict[str, Any], header: dict[str, Any]) -> None:
    """Fewer releases than were made, and the price of the rest."""
    promise["events"] = promise["events"][: chance.randrange(len(promise["events"]))]
    _seal(promise)
    if chance.random() < 0.5:
        header.get("plan", {})["releases"] = copy.deepcopy(promise["events"])


def _counts(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    event = chance.choice(promise["events"])
    event["count"] = chance.choice([0, 1, 2, 50, 10**5, 10**12, 2**63, 10**400, -1, 1.5, True])


def _noise(chance: random.Random, promise: dict[str, Any], header: dict[str, Any]) -> None:
    """More noise in the events than in the plan, or the same in both."""
    event = chance.choice(promise["events"])
    for name in ("noise", "noise_multiplier", "scale"):
        if name in event:
            event[name] = chance.choice([1e-300, 1e-9, 1e-3, event[name] * 3, 1e9, 1e300, None])
            if chance.random() < 0.5:
                header.get("plan", {})["releases"] = copy.deepcopy(promise["events"])
    if chance.random() < 0.5:
        _seal(promise)


def _delta(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    promise["delta"] = chance.choice([1e-300, 1e-12, 1e-9, 1e-6, 0.4, 0.999, 1.0, 0, -1, "1e-6"])


def _accountant(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    names = ["rdp", "gdp", "zcdp", "gdp-clt", "magic", "", "pld\n", None, 7]
    promise["accountant"] = chance.choice(names)
    if chance.random() < 0.5:
        _seal(promise)


def _kind(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    promise["kind"] = chance.choice(["bound", "estimate", "none", "proof", None])
    if chance.random() < 0.5:
        promise["accountant"] = "gdp-clt"
    if chance.random() < 0.5:
        promise["epsilon"] = chance.choice([1e-3, None])


def _texts(chance: random.Random, promise: dict[str, Any], _: Any) -> None:
    words = chance.choice([*ESCAPES, "[red]not private[/red]", "x" * 100_000, "harmless"])
    place = chance.choice(["stamps", "caveats", "versions", "purpose"])
    if place == "versions":
        promise["versions"][chance.choice(["dpflows", words])] = words
    elif place == "purpose":
        chance.choice(promise["events"])["purpose"] = words
    else:
        promise[place] = [words]
    promise["epsilon"] *= chance.choice([0.1, 1.0])


def _seal(promise: dict[str, Any]) -> None:
    """A forger's own sums: the price of what is listed now, if it has one."""
    price = cost(promise)
    promise["epsilon"] = promise["epsilon"] if price is None else price


WAYS = {
    "epsilon": _epsilon,
    "replace-one": _replaced,
    "fewer releases": _dropped,
    "counts": _counts,
    "noise": _noise,
    "delta": _delta,
    "accountant": _accountant,
    "kind": _kind,
    "texts": _texts,
}


def cost(promise: dict[str, Any], neighbours: str | None = None) -> float | None:
    """What the listed releases cost, found without the code under test; ``None`` if nothing."""
    accountant = promise["accountant"] if neighbours is None else "pld"
    try:
        return epsilon_of(
            [event_from_dict(event) for event in promise["events"]],
            delta=promise["delta"],
            neighbours=neighbours or promise["neighbours"],
            accountant=accountant,
        )
    except Exception:  # a forger's numbers may do anything
        return None


def shown(statement: str) -> float:
    """The epsilon that a reader of the statement sees; infinite if there is none."""
    lines = [line for line in statement.split("\n") if "epsilon" in line or "-differential" in line]
    found = re.search(r"\(([0-9.e+-]+), |given epsilon ([0-9.e+-]+)", "\n".join(lines))
    return float(found[1] or found[2]) if found else float("inf")


def judged(path: Path) -> str:
    """What became of a forged file: ``refused``, ``shown``, or what is wrong."""
    promise = opened(path.read_bytes()).header["guarantee"]
    try:
        model = dpflows.load(path)
    except InputError as refusal:
        return "refused" if str(refusal).isprintable() else "the refusal quotes the file"
    statement = model.privacy_statement()
    if not all(line.isprintable() for line in statement.split("\n")):
        return "a control character is shown"
    price, figure = cost(promise), min(shown(statement), model.guarantee_.epsilon)
    if figure != float("inf") and (price is None or not figure >= price * (1 - NOISE)):
        return f"epsilon {figure} is shown for releases that cost {price}"
    exchanged = model.guarantee_.replace_one_epsilon
    if exchanged is not None and not exchanged >= cost(promise, "replace-one") * (1 - NOISE):
        return f"epsilon {exchanged} is shown for exchanging rows"
    is_bound = model.guarantee_.kind == "bound"
    return "an estimate is called a bound" if is_bound and _is_estimate(promise) else "shown"


def _is_estimate(promise: dict[str, Any]) -> bool:
    return promise["accountant"] == "gdp-clt"


def write_forged(path: Path, header_change: Any, source: Path) -> None:
    """A file whose header was changed by a function, with a fitting digest."""
    content: Content = opened(source.read_bytes())
    header_change(content.header)
    path.write_bytes(sealed(Content(json.loads(json.dumps(content.header)), content.arrays)))
