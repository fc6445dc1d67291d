"""Test log-likelihoods of private densities on real tables, all preprocessing paid.

    python benchmarks/densities.py --data FOLDER [--sets S...] [--epsilons E...] [--folds K...]
        [--variants V...]
    python benchmarks/densities.py --files TABLE.npz... [--epsilons E...] ...

A file is a table of numbers of your own: an array ``X`` of rows.

A variant is the default or the default with settings changed, written as
``prior=null,normalisation=moments`` or ``estimator=DPGaussianMixture,components=5``.
Finished cells are kept in the results file, so a run that was stopped goes on where it was. Printed
are the means over folds, and by how much the default is above the best of the other variants.
"""

import argparse
import functools
import json
import pathlib
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import dpflows
from dpflows.experiments.data import REAL, read_numeric, read_real

RESULTS = pathlib.Path(__file__).with_name("densities.json")
#: The default should nowhere be further below the best of the others, in nats.
TOLERATED = 0.1


def settings(variant):
    """``a=1,b=word`` as keyword arguments; ``default`` as none."""
    if variant == "default":
        return {}
    pairs = (item.split("=") for item in variant.split(","))
    return {name: number(value) for name, value in pairs}


def number(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def cell(name, table, epsilon, fold, variant):
    train, test = table.split(fold)
    began = time.monotonic()
    given = settings(variant)
    estimator = getattr(dpflows, given.pop("estimator", "DPDensity"))
    flow = estimator(epsilon, table.delta, bounds=(table.low, table.high), **given).fit(train)
    seconds = time.monotonic() - began
    scores = flow.score_samples(np.clip(test, table.low, table.high)) + table.log_unit
    return {
        "set": name,
        "epsilon": epsilon,
        "fold": fold,
        "variant": variant,
        "test_log_likelihood": round(float(scores.mean()), 3),
        "worst_row": round(float(scores.min()), 1),
        "seconds": round(seconds, 1),
        "expected_seconds": round(flow.plan_.seconds, 1),
        "promise": round(flow.guarantee_.epsilon, 4) if flow.guarantee_.is_private else None,
    }


def same(one, other):
    return all(one[key] == other[key] for key in ("set", "epsilon", "fold", "variant"))


def grouped(cells):
    """The cells of all folds by set, epsilon and variant."""
    groups = {}
    for c in cells:
        groups.setdefault((c["set"], c["epsilon"], c["variant"]), []).append(c)
    return groups


def against_the_best(cells):
    """The default beside the best other variant, over the folds that both have."""
    table = Table("set", "epsilon", "folds", "default", "best of the others", "above it", "holds")
    groups = grouped(cells)
    for (name, epsilon, variant), group in groups.items():
        if variant != "default":
            continue
        ours = {c["fold"]: c["test_log_likelihood"] for c in group}
        others = []
        for (set_name, at, other), cells_of in groups.items():
            theirs = {c["fold"]: c["test_log_likelihood"] for c in cells_of}
            both = sorted(ours.keys() & theirs.keys())
            if (set_name, at) == (name, epsilon) and other != "default" and both:
                pair = [np.mean([values[fold] for fold in both]) for values in (theirs, ours)]
                others.append((*pair, other, len(both)))
        if others:
            best, mean, other, folds = max(others)
            above = mean - best
            table.add_row(name, str(epsilon), str(folds), f"{mean:.2f}", f"{best:.2f} ({other})",
                          f"{above:+.2f}", "yes" if above >= -TOLERATED else "no")  # fmt: skip
    return table


def summary(cells):
    table = Table("set", "epsilon", "variant", "folds", "mean", "sd", "worst row", "seconds")
    for (name, epsilon, variant), group in grouped(cells).items():
        values = [c["test_log_likelihood"] for c in group]
        figures = (np.mean(values).round(3), np.std(values).round(3))
        worst = min(c["worst_row"] for c in group)
        # none where the machine did something else meanwhile
        timed = [c["seconds"] for c in group if c["seconds"] is not None]
        seconds = np.mean(timed).round(1) if timed else ""
        table.add_row(name, str(epsilon), variant, str(len(group)), *map(str, figures),
                      str(worst), str(seconds))  # fmt: skip
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--sets", nargs="+", default=list(REAL))
    parser.add_argument("--files", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--folds", type=int, nargs="+", default=[1])
    parser.add_argument("--variants", nargs="+", default=["default"])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    cells = json.loads(options.results.read_text()) if options.results.exists() else []
    if options.data is None and not options.files:
        parser.error("--data or --files is needed")
    tables = {name: functools.partial(read_real, name, options.data) for name in options.sets}
    if options.files:
        tables = {path.stem: functools.partial(read_numeric, path) for path in options.files}
    for name, read in tables.items():
        table = read()
        for epsilon in options.epsilons:
            for variant in options.variants:
                for fold in options.folds:
                    wanted = {"set": name, "epsilon": epsilon, "fold": fold, "variant": variant}
                    if any(same(wanted, done) for done in cells):
                        continue
                    cells.append(cell(name, table, epsilon, fold, variant))
                    print(json.dumps(cells[-1]), flush=True)
                    options.results.write_text(json.dumps(cells, indent=2) + "\n")
    console = Console(width=120)
    console.print(summary(cells))
    console.print(against_the_best(cells))


if __name__ == "__main__":
    main()
