"""How soon training starts: a fit of Life Science in a new process, and in another after it.

    python benchmarks/starts.py --data FOLDER [--epsilon E]

The first process finds no compiled programs, the second those that the first kept. Printed are
the seconds of importing and reading, and, counted from the call of ``fit``, of the first step and
of the whole fit.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def fit(data, epsilon):
    began = time.monotonic()
    from dpflows import DPFlow
    from dpflows.experiments.data import read_real
    from dpflows.training.dp_sgd import Callbacks

    table = read_real("life-science", data)
    rows, _ = table.split(1)
    called, steps = time.monotonic(), []
    flow = DPFlow(epsilon, table.delta, bounds=(table.low, table.high))
    watch = Callbacks(on_progress=lambda _: steps.append(time.monotonic() - called))
    flow.fit(rows, callbacks=watch)
    return {
        "imports and rows": round(called - began, 1),
        "first step": round(steps[0], 1),
        "fit": round(time.monotonic() - called, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--once", action="store_true", help="in this process, with its cache")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(fit(options.data, options.epsilon)))
        return
    again = [sys.executable, __file__, "--once", "--data", str(options.data)]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing compiled", "compiled before"):
            found = subprocess.run(
                [*again, "--epsilon", str(options.epsilon)],
                env=os.environ | {"DPFLOWS_CACHE": folder},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            print(name, found.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
