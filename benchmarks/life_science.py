"""The default plan on Life Science, in the paper's units. ``make bench-life-science DATA=...``.

Rows are standardised WITHOUT privacy here, so that the figure shows the training engine
alone: these numbers are for comparing engines and are no guarantee about the rows.
"""

import argparse
import json
import pathlib
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dpflows.models.density import Defended, Density, wide_gaussian
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.training import fit_model, make_plan
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy

DELTA = 1.52e-5
BARS = {0.5: 11.0, 1.0: 11.4, 2.0: 11.9, 4.0: 12.4}
RESULTS = pathlib.Path(__file__).with_name("life_science.json")


def fold(data, number):
    with np.load(data / "lifesci" / "lifesci.npz") as file:
        rows, test = file["X_scaled"], file["paper_test_fold"] == number
    return rows[~test], rows[test]


def fit(train, epsilon):
    """A density in the units of the rows, and the plan that made it."""
    normaliser = Scaling(train.mean(axis=0), train.std(axis=0))
    plan = make_plan(Budget(epsilon, DELTA), rows=len(train), columns=train.shape[1])
    entropy = Entropy.from_os()
    key = jax.random.wrap_key_data(jax.numpy.asarray(entropy.key("initialisation")))
    flow = plan.architecture.build(plan.columns, key=key)
    model = Defended(flow, wide_gaussian(plan.columns))
    rows = normaliser.apply(train)
    fitted = fit_model(model, rows, plan, entropy=entropy, known_to_taps=True)
    return Density(normaliser, fitted), plan


def cell(data, number, epsilon):
    train, test = fold(data, number)
    began = time.monotonic()
    density, plan = fit(train, epsilon)
    seconds = time.monotonic() - began
    scores = density.log_prob(test)
    return {
        "epsilon": epsilon,
        "fold": number,
        "test_log_likelihood": round(float(scores.mean()), 3),
        "worst_row": round(float(scores.min()), 1),
        "bar": BARS.get(epsilon),
        "seconds": round(seconds, 1),
        "expected_seconds": round(plan.seconds, 1),
        "steps": plan.steps,
        "batch_size": plan.batches.batch_size,
        "noise_multiplier": round(plan.noise_multiplier, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--folds", type=int, nargs="+", default=[1])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(BARS))
    options = parser.parse_args()
    cells = []
    for epsilon in options.epsilons:
        for number in options.folds:
            cells.append(cell(options.data, number, epsilon))
            print(json.dumps(cells[-1]), flush=True)
    RESULTS.write_text(json.dumps(cells, indent=2) + "\n")
    table = Table("epsilon", "fold", "test log-likelihood", "at least", "seconds")
    for c in cells:
        figures = (c["epsilon"], c["fold"], c["test_log_likelihood"], c["bar"], c["seconds"])
        table.add_row(*map(str, figures))
    Console().print(table)


if __name__ == "__main__":
    main()
