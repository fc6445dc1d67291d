"""Private mixtures on real and toy tables, as a table of test log-likelihoods.

``python benchmarks/mixtures.py --data FOLDER --sets life-science --epsilons 1 --folds 1 2``.
Boxes and scales below are public; test rows are read without privacy, so the figures compare
methods and are no guarantee about the rows.
"""

import argparse
import dataclasses
import pathlib
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_em import fit_corrected, plan_corrected
from dpflows.training.local_frames import DEFAULT, Recipe
from dpflows.training.mixture_em import fit_local, plan_mixture

ABLATIONS = {
    "default": DEFAULT,
    "no gains": Recipe(gains=False),
    "no scout": Recipe(scouting=False),
    "random start": Recipe(splitting=False),
    "no background": Recipe(background=1e-9),
    "global frame": None,
}
#: Weight of the uniform density that every fit is mixed with before it is scored.
BACKGROUND = 0.01
#: Published means and deviations of the whole household power set, not of this part of it.
POWER_CENTRE = np.array([1.09, 240.84, 1.12, 1.30, 6.46, 719.5])
POWER_SCALE = np.array([1.06, 3.24, 6.15, 5.82, 8.44, 415.7])
POWER_BOX = np.array([[0.0, 220.0, 0.0, 0.0, 0.0, 0.0], [11.0, 255.0, 85.0, 85.0, 85.0, 1440.0]])
POWER_STEP = np.array([0.002, 0.01, 1.0, 1.0, 1.0, 1.0])
#: Degrees to the units of the Gowalla file.
DEGREES_CENTRE = np.array([36.22312102, -97.45721842])
DEGREES_SCALE = np.array([7.75045576, 35.43484215])
WORLD = np.array([[-90.0, -180.0], [90.0, 180.0]])


@dataclasses.dataclass(frozen=True)
class Task:
    """Rows to learn from, rows to score, the public box and the delta."""

    train: np.ndarray
    test: np.ndarray
    box: np.ndarray
    delta: float

    def cube(self, rows):
        low, high = self.box
        return (rows - low) / (high - low) * 2 - 1

    @property
    def log_stretch(self):
        """What a log-density on the cube loses in the units of the rows."""
        return float(np.log((self.box[1] - self.box[0]) / 2).sum())


def halved(rows, box, delta, fold):
    """A tenth of the rows, drawn by the number of the fold, is for testing."""
    order = np.random.default_rng(fold).permutation(len(rows))
    cut = len(rows) // 10
    return Task(rows[order[cut:]], rows[order[:cut]], box, delta)


def life_science(data, fold):
    with np.load(data / "lifesci" / "lifesci.npz") as file:
        rows, test = file["X_scaled"], file["paper_test_fold"] == fold
    box = np.array([-np.ones(10), np.ones(10)])
    return Task(rows[~test], rows[test], box, 1.52e-5)


def toy(name):
    def load(data, fold):
        rows = np.loadtxt(data / "toy" / f"{name}.csv", delimiter=",")
        return halved(rows, np.array([[-4.0, -4.0], [4.0, 4.0]]), 3.7e-5, fold)

    return load


def power(data, fold):
    with np.load(data / "power" / "power_2007H1_clean.npz") as file:
        rows = file["X"][:, [0, 2, 4, 5, 6, 7]]
    rng = np.random.default_rng(fold)
    rows = rows[rng.permutation(len(rows))[:100_000]]
    rows = rows + rng.uniform(size=rows.shape) * POWER_STEP
    rows = (rows - POWER_CENTRE) / POWER_SCALE
    return halved(rows, (POWER_BOX - POWER_CENTRE) / POWER_SCALE, 1.11e-5, fold)


def gowalla(data, fold):
    """Jittered within the file's rounding, since most rows repeat another."""
    rows = np.loadtxt(data / "gowalla" / "gowalla.csv", delimiter=",")
    rows = rows + np.random.default_rng(fold).uniform(-5e-7, 5e-7, size=rows.shape)
    return halved(rows, (WORLD - DEGREES_CENTRE) / DEGREES_SCALE, 1.11e-5, fold)


SETS = {
    "life-science": life_science,
    "gaussian": toy("gaussian"),
    "moons": toy("moons"),
    "pinwheel": toy("pinwheel"),
    "power": power,
    "gowalla": gowalla,
}
EPSILONS = {"life-science": [0.5, 1.0, 2.0, 4.0], "power": [1.25], "gowalla": [2.25]}


def fit(task, epsilon, recipe):
    budget = Budget(epsilon, task.delta)
    rows, columns = task.train.shape
    cube, entropy = task.cube(task.train), Entropy.from_os()
    if recipe is None:
        plan = plan_corrected(budget, rows=rows, columns=columns, components=10)
        return fit_corrected(cube, plan, entropy=entropy).mixture
    plan = plan_mixture(budget, rows=rows, columns=columns, recipe=recipe)
    return fit_local(cube, plan, entropy=entropy)


def scores(task, mixture, background):
    inside = task.cube(task.test)
    floor = np.log(max(background, 1e-300)) - inside.shape[1] * np.log(2)
    density = np.log1p(-background) + mixture.log_prob(inside)
    return np.logaddexp(density, floor) - task.log_stretch


def cell(task, epsilon, variant):
    began = time.monotonic()
    mixture = fit(task, epsilon, ABLATIONS[variant])
    seconds = time.monotonic() - began
    found = scores(task, mixture, 0.0 if variant == "no background" else BACKGROUND)
    return found.mean(), found.min(), len(mixture.weights), seconds


def line(data, name, epsilon, variant, folds):
    cells = np.array([cell(SETS[name](data, fold), epsilon, variant) for fold in folds])
    mean, spread = cells[:, 0].mean(), cells[:, 0].std()
    return [
        name,
        f"{epsilon:g}",
        variant,
        f"{mean:.3f}",
        f"{spread:.3f}",
        f"{cells[:, 1].min():.1f}",
        f"{cells[:, 2].mean():.0f}",
        f"{cells[:, 3].mean():.1f}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folds", type=int, nargs="+", default=[1])
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--variants", nargs="+", choices=ABLATIONS, default=["default"])
    options = parser.parse_args()
    heads = ["set", "epsilon", "variant", "log-likelihood", "spread", "worst row", "K", "seconds"]
    table = Table(*heads)
    for name in options.sets:
        for epsilon in options.epsilons or EPSILONS.get(name, [1.5]):
            for variant in options.variants:
                found = line(options.data, name, epsilon, variant, options.folds)
                print(*found, flush=True)
                table.add_row(*found)
    Console().print(table)


if __name__ == "__main__":
    main()
