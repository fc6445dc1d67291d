"""Our clipped gradient against Opacus on the same MAF, measured in turn. ``make bench-peers``."""

import json
import statistics
import subprocess
import sys

from rich.console import Console
from run import REPEATS, RESULTS, by_taps, gradients, in_turn, table

ROUNDS = 5


def opacus_seconds(python, batch):
    call = [python, "benchmarks/opacus_gradient.py", str(batch), "9"]
    return float(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def our_seconds(calls):
    return in_turn(*calls, rounds=9)[1] / REPEATS


def speedup(python, batch):
    """The median over rounds of one peer measurement beside one of ours."""
    calls = gradients("maf", batch, by_taps)
    return statistics.median(
        opacus_seconds(python, batch) / our_seconds(calls) for _ in range(ROUNDS)
    )


def main(python):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["speedup_vs_opacus"] = {"maf": {str(b): round(speedup(python, b), 1) for b in (512,)}}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    Console().print(table(results))


if __name__ == "__main__":
    main(sys.argv[1])
