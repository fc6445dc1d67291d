"""Settings of the mixed model, judged by training rows of Adult that were held out.

    python benchmarks/mixed.py --data FOLDER [--epsilon E] [--variants V...]

A variant is ``default`` or settings of ``DPAutoregressive`` and shares of the budget, written as
``steps=1000,learning_rate=0.01`` or ``merged_share=0.1,stands_out=5``. The test rows of the set are
never read, so that they stay fit to judge what was chosen here.
"""

import argparse
import json

import numpy as np
from rich.console import Console
from rich.table import Table

from dpflows import DPAutoregressive
from dpflows.experiments.baselines.comparison import Comparison
from dpflows.experiments.data import ADULT_SCHEMA, read_adult
from dpflows.pipeline import marginals
from dpflows.privacy.guarantee import Budget
from dpflows.table import bins
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

DELTA, HELD_OUT = 1e-6, 4_561
#: Public rules that a variant may change, and where they are.
RULES = {
    "bin_share": (marginals, "BIN_SHARE"),
    "merged_share": (marginals, "MERGED_SHARE"),
    "stands_out": (bins, "STANDS_OUT"),
    "most_merged": (bins, "MOST_MERGED"),
}


def settings(variant):
    if variant == "default":
        return {}
    return {name: json.loads(value) for name, value in (p.split("=") for p in variant.split(","))}


def halves(data):
    """Training rows to fit, and training rows to judge by."""
    train, _ = read_adult(data)
    order = np.random.default_rng().permutation(len(train))
    return train.iloc[order[HELD_OUT:]], train.iloc[order[:HELD_OUT]]


def line(variant, epsilon, fitted, held, schema):
    given = settings(variant)
    for name in [name for name in given if name in RULES]:
        setattr(*RULES[name], given.pop(name))
    model = DPAutoregressive(epsilon, DELTA, schema=schema, **given).fit(fitted)
    columns = (
        read_table(rows, schema).columns for rows in (fitted, held, model.sample(len(fitted)))
    )
    train, test, drawn = columns
    figures = Comparison(train, test, schema, Budget(epsilon, DELTA)).judge(drawn)
    found = figures.learning, figures.two_way_fitted, figures.two_way, figures.detection
    return [variant, *(f"{value:.4f}" for value in found), f"{model.score(held):.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--variants", nargs="+", default=["default"])
    given = parser.parse_args()
    fitted, held = halves(given.data)
    schema = Schema.read(ADULT_SCHEMA)
    table = Table("variant", "AUC", "2-way, fitted", "2-way, held out", "detection", "log-density")
    usual = [(*place, getattr(*place)) for place in RULES.values()]
    for variant in given.variants:
        table.add_row(*line(variant, given.epsilon, fitted, held, schema))
        for module, name, value in usual:
            setattr(module, name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
