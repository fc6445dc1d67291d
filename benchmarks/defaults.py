"""What the default rule costs against its neighbours: the evidence behind docs/defaults.md.

For each data set the default plan is run beside plans with one setting changed. Rows are
standardised WITHOUT privacy, so that only the training settings are compared: these
figures are for choosing a public rule and are no guarantee about the rows.
"""

import argparse
import dataclasses
import json
import pathlib
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dpflows.experiments.data import read_real
from dpflows.models.density import Defended, Density, uniform_box
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.defaults import defaults_for
from dpflows.pipeline.training import Settings, fit_model, make_plan
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy

#: Rows are clipped to so many standard deviations: the box that the background covers.
REACH = 8.0
RESULTS = pathlib.Path(__file__).with_name("defaults.json")


def variants(rule, rates):
    """The rule, and the rule with one setting changed."""
    shape = rule.architecture
    other = "affine-spline" if shape.transformer == "spline" else "spline"
    return {
        "default": Settings(),
        **{f"learning rate {rate:g}": Settings(learning_rate=rate) for rate in rates},
        "half the steps": Settings(steps=rule.steps // 2),
        "half the batch": Settings(batch_size=max(rule.batch_size // 2, 1)),
        "other depth": Settings(architecture=dataclasses.replace(shape, depth=3 - shape.depth)),
        "other transformer": Settings(architecture=dataclasses.replace(shape, transformer=other)),
        "automatic clipping": Settings(clipping="automatic"),
    }


def score(train, test, epsilon, settings):
    normaliser = Scaling(train.mean(axis=0), train.std(axis=0))
    budget = Budget(epsilon, len(train) ** -1.1)
    plan = make_plan(budget, rows=len(train), columns=train.shape[1], settings=settings)
    entropy = Entropy.from_os()
    key = jax.random.wrap_key_data(jax.numpy.asarray(entropy.key("initialisation")))
    box = uniform_box([-REACH] * plan.columns, [REACH] * plan.columns)
    model = Defended(plan.architecture.build(plan.columns, key=key), box)
    rows = np.clip(normaliser.apply(train), -REACH, REACH)
    began = time.monotonic()
    fitted = fit_model(model, rows, plan, entropy=entropy, known_to_taps=True)
    seconds = time.monotonic() - began
    inside = normaliser.undo(np.clip(normaliser.apply(test), -REACH, REACH))
    return float(Density(normaliser, fitted).log_prob(inside).mean()), seconds, plan


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument(
        "--sets", nargs="+", default=["pinwheel", "mammography", "cardio", "life-science", "power"]
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--learning-rates", type=float, nargs="*", default=[])
    parser.add_argument("--variants", nargs="+", help="only those that begin like one of these")
    options = parser.parse_args()
    cells = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for name in options.sets:
        train, test = read_real(name, options.data).split(1)
        for epsilon in options.epsilons:
            budget = Budget(epsilon, len(train) ** -1.1)
            rule = defaults_for(budget, rows=len(train), columns=train.shape[1])
            for variant, settings in variants(rule, options.learning_rates).items():
                if options.variants and not variant.startswith(tuple(options.variants)):
                    continue
                value, seconds, plan = score(train, test, epsilon, settings)
                cells.append(
                    {
                        "set": name,
                        "rows": len(train),
                        "columns": train.shape[1],
                        "epsilon": epsilon,
                        "variant": variant,
                        "test_log_likelihood": round(value, 3),
                        "seconds": round(seconds, 1),
                        "expected_seconds": round(plan.seconds, 1),
                    }
                )
                print(json.dumps(cells[-1]), flush=True)
                RESULTS.write_text(json.dumps(cells, indent=2) + "\n")
    table = Table("set", "epsilon", "variant", "test log-likelihood", "seconds")
    for c in cells:
        figures = (c["set"], c["epsilon"], c["variant"], c["test_log_likelihood"], c["seconds"])
        table.add_row(*map(str, figures))
    Console().print(table)


if __name__ == "__main__":
    main()
