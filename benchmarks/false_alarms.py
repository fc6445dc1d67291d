"""Announced against measured false-alarm rates of the anomaly detector, on fresh normal rows.

    python benchmarks/false_alarms.py --data FOLDER [--sets S...] [--epsilons E...] [--folds K...]
        [--thresholds samples bought]

A detector is fitted to nine tenths of the normal rows of a labelled set. The rate is the share of
the other normal rows that it flags. The area under the ROC curve is that of these rows against the
known anomalies.
"""

import argparse
import json
import pathlib

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from dpflows import DPAnomalyDetector, DPFlow
from dpflows.experiments.tables import read_real

SETS = ("thyroid", "shuttle", "cardio", "mammography")
RATES = (0.01, 0.05, 0.1)
RESULTS = pathlib.Path(__file__).with_name("false_alarms.json")


def cells(name, table, epsilon, fold, threshold):
    """The rates that one fit gives; a bought threshold needs a fit of its own for each."""
    train, test = table.split(fold)
    inside = [np.clip(rows, table.low, table.high) for rows in (test, table.anomalies)]
    density = DPFlow(epsilon, table.delta, bounds=(table.low, table.high))
    detector = None
    for rate in RATES:
        if threshold == "samples" and detector is not None:
            detector = DPAnomalyDetector.around(detector.estimator_, contamination=rate)
        else:
            detector = DPAnomalyDetector(density, contamination=rate, threshold=threshold).fit(
                train
            )
        normal, odd = (detector.score_samples(rows) for rows in inside)
        labels = np.repeat([0, 1], [len(normal), len(odd)])
        yield {
            "set": name,
            "epsilon": epsilon,
            "fold": fold,
            "threshold": threshold,
            "announced": rate,
            "measured": round(float(np.mean(normal < detector.offset_)), 4),
            "auc": round(float(roc_auc_score(labels, -np.concatenate([normal, odd]))), 4),
        }


def summary(done):
    table = Table("set", "epsilon", "threshold", "announced", "measured", "area under the curve")
    groups = {}
    for cell in done:
        key = (cell["set"], cell["epsilon"], cell["threshold"], cell["announced"])
        groups.setdefault(key, []).append(cell)
    for key, group in groups.items():
        figures = [np.mean([cell[name] for cell in group]).round(4) for name in ("measured", "auc")]
        table.add_row(*map(str, key), *map(str, figures))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--thresholds", nargs="+", default=["samples"])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    done = []
    for name in options.sets:
        table = read_real(name, options.data)
        for epsilon in options.epsilons:
            for fold in options.folds:
                for threshold in options.thresholds:
                    done += cells(name, table, epsilon, fold, threshold)
                    options.results.write_text(json.dumps(done, indent=2) + "\n")
    Console().print(summary(done))


if __name__ == "__main__":
    main()
