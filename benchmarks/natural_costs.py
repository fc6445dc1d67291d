"""Time and memory of natural-gradient training against rows, columns and weights.

    python benchmarks/natural_costs.py [--steps T]

Every point is a fit of made-up rows in a process of its own, at epsilon 1 with the settings of the
rule but for the width where weights are varied. Memory is the peak of the process beyond what it
held before the call of ``fit``. Writes ``natural_costs.json`` and ``natural_costs.png``.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time

RESULTS = pathlib.Path(__file__).with_suffix(".json")
ROWS, COLUMNS = 24_000, 10
POINTS = {
    "rows": [(n, COLUMNS, None) for n in (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)],
    "columns": [(ROWS, d, None) for d in (4, 8, 16, 32, 64)],
    "weights": [(ROWS, COLUMNS, width) for width in (2, 4, 8, 12, 16)],
}


def peak():
    """The most memory that this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit(rows, columns, width, steps):
    import dataclasses

    import numpy as np

    from dpflows import DPFlow
    from dpflows.training.dp_sgd import Callbacks

    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, columns))
    table = np.clip(np.tanh(hidden) + 0.2 * rng.normal(size=(rows, columns)), -3, 3)
    given = {"bounds": (-3, 3)}
    rule = DPFlow(1.0, 1e-7, **given).plan(rows, columns)
    shape = rule.architecture
    if width is not None:
        shape = dataclasses.replace(shape, width=width)
    often = max(round(rule.optimizer.checks * steps / rule.steps), 1)
    optimizer = dataclasses.replace(rule.optimizer, checks=often)
    given |= {"architecture": shape, "optimizer": optimizer, "steps": steps}
    given |= {"batch_size": rule.batches.batch_size}
    before, times = peak(), []
    watch = Callbacks(on_progress=lambda _: times.append(time.monotonic()))
    DPFlow(1.0, 1e-7, **given).fit(table, callbacks=watch)
    # the first step compiles
    return {
        "rows": rows,
        "columns": columns,
        "weights": shape.weights(columns),
        "seconds_per_step": round((times[-1] - times[0]) / (len(times) - 1), 4),
        "steps_of_the_rule": rule.steps,
        "megabytes": round(peak() - before),
    }


def plot(results, path):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(results), figsize=(11, 5), sharey="row", sharex="col")
    for (name, points), column in zip(results.items(), axes.T, strict=True):
        for axis, what in zip(column, ("seconds_per_step", "megabytes"), strict=True):
            axis.loglog([p[name] for p in points], [p[what] for p in points], "o-")
            axis.grid(alpha=0.3, which="both")
        column[1].set_xlabel(name)
    axes[0, 0].set_ylabel("seconds per step")
    axes[1, 0].set_ylabel("megabytes")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--point", help="one point, in this process")
    options = parser.parse_args()
    if options.point:
        print(json.dumps(fit(*json.loads(options.point), options.steps)))
        return
    results = {name: [] for name in POINTS}
    for name, points in POINTS.items():
        for point in points:
            command = [sys.executable, __file__, "--steps", str(options.steps), "--point"]
            command.append(json.dumps(point))
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[name].append(json.loads(found.stdout.strip().splitlines()[-1]))
            print(name, results[name][-1], flush=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    plot(results, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()
