"""Announced against measured false-alarm rates of the anomaly detector, on fresh normal rows.

    python benchmarks/false_alarms.py --data FOLDER [--sets S...] [--epsilons E...] [--folds K...]
        [--more]

A detector is fitted to nine tenths of the normal rows of a labelled set. The rate is the share of
the other normal rows that it flags. The area under the ROC curve is that of these rows against the
known anomalies, if the set has any. One fit, for the smallest rate, gives all rates: those of the
bought threshold, and for comparison those of the density's own samples. With ``--more`` what the
file of results holds is kept, and not repeated.
"""

import argparse
import json
import pathlib

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from dpflows import DPAnomalyDetector, DPFlow
from dpflows.experiments.data import read_real

SETS = ("thyroid", "shuttle", "cardio", "mammography")
RATES = (0.01, 0.05, 0.1)
RESULTS = pathlib.Path(__file__).with_name("false_alarms.json")
#: Announced rates should hold within this factor.
FACTOR = 1.5


def area(detector, table, normal):
    """Under the ROC curve, against the known anomalies."""
    if table.anomalies is None:
        return None
    odd = detector.score_samples(np.clip(table.anomalies, table.low, table.high))
    labels = np.repeat([0, 1], [len(normal), len(odd)])
    return round(float(roc_auc_score(labels, -np.concatenate([normal, odd]))), 4)


def cells(name, table, epsilon, fold):
    """The rates that one fit gives."""
    train, test = table.split(fold)
    density = DPFlow(epsilon, table.delta, bounds=(table.low, table.high))
    fitted = DPAnomalyDetector(density, contamination=min(RATES)).fit(train)
    normal = fitted.score_samples(np.clip(test, table.low, table.high))
    auc = area(fitted, table, normal)
    for rate in RATES:
        free = DPAnomalyDetector.around(fitted.estimator_, contamination=rate)
        for threshold, detector in (
            ("bought", fitted.with_contamination(rate)),
            ("samples", free),
        ):
            yield {
                "set": name,
                "epsilon": epsilon,
                "fold": fold,
                "threshold": threshold,
                "announced": rate,
                "measured": round(float(np.mean(normal < detector.offset_)), 4),
                "rows": len(normal),
                "auc": auc,
            }


def summary(done):
    """Means over folds, least and greatest fold, and whether the mean holds."""
    table = Table(
        "set",
        "epsilon",
        "threshold",
        "announced",
        "measured",
        "from",
        "to",
        "folds",
        "holds",
        "AUC",
    )
    groups = {}
    for cell in done:
        key = (cell["set"], cell["epsilon"], cell["threshold"], cell["announced"])
        groups.setdefault(key, []).append(cell)
    for key, group in sorted(groups.items()):
        rates = [cell["measured"] for cell in group]
        mean = np.average(rates, weights=[cell["rows"] for cell in group])
        holds = key[-1] / FACTOR <= mean <= key[-1] * FACTOR
        areas = [cell["auc"] for cell in group if cell["auc"] is not None]
        auc = f"{np.mean(areas):.4f}" if areas else ""
        figures = (f"{mean:.4f}", min(rates), max(rates), len(group), holds, auc)
        table.add_row(*map(str, (*key, *figures)))
    return table


def main():
    """Measure, writing after each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    done = json.loads(options.results.read_text()) if options.more else []
    known = {(cell["set"], cell["epsilon"], cell["fold"]) for cell in done}
    for name in options.sets:
        table = read_real(name, options.data)
        for epsilon in options.epsilons:
            for fold in options.folds:
                if (name, epsilon, fold) not in known:
                    done += cells(name, table, epsilon, fold)
                    options.results.write_text(json.dumps(done, indent=2) + "\n")
    Console(width=110).print(summary(done))


if __name__ == "__main__":
    main()
