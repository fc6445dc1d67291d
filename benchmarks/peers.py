"""Our clipped gradient against Opacus and jax-privacy, measured in turn. ``make bench-peers``.

All sum the per-row clipped gradients of a batch of a MAF of 5 blocks of width 100 over 10
columns; none draws noise. jax-privacy has the very same flow and weights as ours and 16 rows
at a time; Opacus has zuko's flow of the same shape.
"""

import json
import os
import sys

from rich.console import Console
from rich.table import Table
from run import BATCHES, RESULTS
from turns import Contender, medians

ROUNDS = 15
SCRIPTS = {
    "ours": "our_gradient.py",
    "opacus": "opacus_gradient.py",
    "jax-privacy": "jax_privacy_gradient.py",
}


def contenders(python, batch):
    """Ours runs here, the peers in their own environment."""
    return {
        name: Contender(sys.executable if name == "ours" else python, _beside(script), str(batch))
        for name, script in SCRIPTS.items()
    }


def measured(python, batch):
    """Milliseconds per gradient of each, how often theirs takes ours, and whether they agree."""
    running = contenders(python, batch)
    seconds = medians(running, rounds=ROUNDS)
    for contender in running.values():
        contender.end()
    facts = {name: contender.facts for name, contender in running.items()}
    each = {name: 1000 * seconds[name] / facts[name]["gradients"] for name in seconds}
    return {
        "milliseconds": {name: round(time, 3) for name, time in each.items()},
        "ratios": {name: round(time / each["ours"], 2) for name, time in each.items()},
        "parameters": {name: told["parameters"] for name, told in facts.items()},
        "differences": {name: told.get("difference") for name, told in facts.items()},
    }


def table(results):
    sheet = Table("batch", "clipped gradient by", "ms", "times ours", "parameters", "agrees within")
    for batch, found in results.items():
        for name in SCRIPTS:
            gap = found["differences"][name]
            sheet.add_row(
                batch,
                name,
                f"{found['milliseconds'][name]:.2f}",
                f"{found['ratios'][name]:.2f}",
                f"{found['parameters'][name]:,}",
                "" if gap is None else f"{gap:.0e}",
            )
    return sheet


def _beside(script):
    return os.path.join(os.path.dirname(__file__), script)


def main(python):
    console = Console()
    console.print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    found = {}
    for batch in BATCHES:
        found[str(batch)] = measured(python, batch)
        console.print(batch, found[str(batch)]["milliseconds"])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results.pop("speedup_vs_opacus", None)
    results["peers"] = {"maf": found}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(table(found))
    console.print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1])
