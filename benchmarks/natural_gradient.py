"""Which parts of natural-gradient training matter: one changed at a time, the flow alone.

    python benchmarks/natural_gradient.py --data FOLDER [--sets S...] [--epsilon E] [--folds K...]
        [--variants V...]

Finished cells are kept in the results file, so a run that was stopped goes on where it was.
"""

import argparse
import dataclasses
import json
import pathlib
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from dpflows import DPFlow
from dpflows.experiments.data import read_real
from dpflows.training.natural_gradient import NaturalGradient

RESULTS = pathlib.Path(__file__).with_name("natural_gradient.json")
PLAIN = NaturalGradient()


def with_width(architecture, factor):
    """The same shape with networks this many times as wide."""
    return dataclasses.replace(architecture, width=max(1, round(architecture.width * factor)))


#: What is changed: settings of the optimizer, of the flow, and a factor on the width.
VARIANTS = {
    "the rule": ({}, {}, 1),
    "metric: full": ({"metric": "full"}, {}, 1),
    "metric: kronecker": ({"metric": "kronecker"}, {}, 1),
    "metric: diagonal": ({"metric": "diagonal"}, {}, 1),
    "metric: identity": ({"metric": "identity"}, {}, 1),
    "no progress checks": ({"checks": 0}, {}, 1),
    "5 progress checks": ({"checks": 5}, {}, 1),
    "no annealing": ({"annealing": 1.0}, {}, 1),
    "annealing from half of the steps on": ({"annealing": 0.5}, {}, 1),
    "gain 0.1": ({"gain": 0.1}, {}, 1),
    "gain 0.6": ({"gain": 0.6}, {}, 1),
    "40 steps": ({}, {"steps": 40}, 1),
    "160 steps": ({}, {"steps": 160}, 1),
    "half as wide": ({}, {}, 0.5),
    "twice as wide": ({}, {}, 2),
    "clip 0.25": ({"clip": 0.25}, {}, 1),
    "clip 1": ({"clip": 1.0}, {}, 1),
    "least damping 0.003": ({"least_damping": 0.003}, {}, 1),
    "least damping 0.03": ({"least_damping": 0.03}, {}, 1),
    "longest step 1": ({"trust": 1.0}, {}, 1),
    "longest step 3": ({"trust": 3.0}, {}, 1),
    "a tenth of the damping": ({"damping": PLAIN.damping / 10}, {}, 1),
    "ten times the damping": ({"damping": PLAIN.damping * 10}, {}, 1),
}
#: Weights up to which the full Fisher matrix is tried: it is factored at every step.
MOST_FULL = 4_000


def is_too_large(table, epsilon):
    rows, columns = table.split(1)[0].shape
    plan = DPFlow(epsilon, table.delta, bounds=(-1, 1), prior=None).plan(rows, columns)
    return plan.architecture.weights(columns) > MOST_FULL


def cell(name, table, epsilon, fold, variant):
    train, test = table.split(fold)
    changed, settings, factor = VARIANTS[variant]
    given = {"bounds": (table.low, table.high), "prior": None}
    rule = DPFlow(epsilon, table.delta, **given).plan(*train.shape)
    flow = DPFlow(
        epsilon,
        table.delta,
        **given,
        optimizer=dataclasses.replace(rule.optimizer, **changed),
        architecture=with_width(rule.architecture, factor),
        **{"steps": rule.steps} | settings,
    )
    began = time.monotonic()
    flow.fit(train)
    seconds = time.monotonic() - began
    scores = flow.score_samples(np.clip(test, table.low, table.high)) + table.log_unit
    return {
        "set": name,
        "epsilon": epsilon,
        "fold": fold,
        "variant": variant,
        "test_log_likelihood": round(float(scores.mean()), 3),
        "seconds": round(seconds, 1),
    }


def summary(cells):
    sets = list(dict.fromkeys(c["set"] for c in cells))
    table = Table("variant", *sets)
    for variant in VARIANTS:
        found = [
            [c["test_log_likelihood"] for c in cells if (c["set"], c["variant"]) == (s, variant)]
            for s in sets
        ]
        table.add_row(variant, *(f"{np.mean(values):.2f}" if values else "" for values in found))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["life-science", "mammography", "pageblocks"])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--folds", type=int, nargs="+", default=[1])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    cells = json.loads(options.results.read_text()) if options.results.exists() else []
    for name in options.sets:
        table = read_real(name, options.data)
        for variant in options.variants:
            for fold in options.folds:
                wanted = {"set": name, "epsilon": options.epsilon, "fold": fold, "variant": variant}
                if any(wanted.items() <= done.items() for done in cells):
                    continue
                if variant == "metric: full" and is_too_large(table, options.epsilon):
                    continue
                cells.append(cell(name, table, options.epsilon, fold, variant))
                print(json.dumps(cells[-1]), flush=True)
                options.results.write_text(json.dumps(cells, indent=2) + "\n")
    Console().print(summary(cells))


if __name__ == "__main__":
    main()
