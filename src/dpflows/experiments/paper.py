"""The figures of Waites and Cummings, as printed, and the settings of their code.

Log-likelihoods are means over ten folds in the paper's units. Pinwheel is printed there
as a negative log-likelihood; here its sign is turned, so that more is better everywhere.
"""

import dataclasses
from typing import final

Figures = dict[float, float]

#: How the rows of the paper's tables are called here: (data set, method, accountant).
PUBLISHED: dict[tuple[str, str, str], Figures] = {
    ("life-science", "paper-recipe", "gdp-clt"): {0.5: 8.90, 1.0: 9.41, 2.0: 10.20, 4.0: 10.77},
    ("life-science", "paper-recipe", "ma"): {0.5: 7.37, 1.0: 8.67, 2.0: 9.32, 4.0: 10.09},
    ("life-science", "dp-mog", "ma"): {0.5: 2.30, 1.0: 5.09, 2.0: 8.87, 4.0: 9.10},
    ("life-science", "dp-mog", "zcdp"): {0.5: -8.93, 1.0: -0.16, 2.0: 2.95, 4.0: 5.48},
    ("power", "paper-recipe", "gdp-clt"): {1.25: -2.12},
    ("power", "paper-recipe", "ma"): {1.25: -3.43, 1.75: -2.47, 2.25: -2.16},
    ("power", "dp-mog", "ma"): {1.25: -2.88, 1.75: -2.87, 2.25: -2.86},
    ("power", "dp-mog", "zcdp"): {1.25: -3.29, 1.75: -3.10, 2.25: -3.04},
    ("gowalla", "paper-recipe", "gdp-clt"): {2.25: -0.44},
    ("gowalla", "paper-recipe", "ma"): {2.25: -1.81, 3.5: -0.77, 4.0: 0.47},
    ("gowalla", "dp-mog", "ma"): {2.25: -0.92, 3.5: -0.92, 4.0: -0.91},
    ("gowalla", "dp-mog", "zcdp"): {2.25: -0.87, 3.5: -0.93, 4.0: -0.93},
    ("half-moons", "paper-recipe", "gdp-clt"): {1.5: -2.23},
    ("half-moons", "paper-recipe", "ma"): {1.5: -2.57, 2.25: -2.43, 3.0: -2.22},
    ("half-moons", "dp-mog", "ma"): {1.5: -2.59, 2.25: -2.58, 3.0: -2.58},
    ("half-moons", "dp-mog", "zcdp"): {1.5: -2.73, 2.25: -2.60, 3.0: -2.60},
    ("gaussians", "paper-recipe", "gdp-clt"): {1.5: -2.45},
    ("gaussians", "paper-recipe", "ma"): {1.5: -2.73, 2.25: -2.61, 3.0: -2.45},
    ("gaussians", "dp-mog", "ma"): {1.5: -2.44, 2.25: -2.45, 3.0: -2.45},
    ("gaussians", "dp-mog", "zcdp"): {1.5: -2.42, 2.25: -2.41, 3.0: -2.43},
    ("pinwheel", "paper-recipe", "ma"): {1.5: -2.80, 2.5: -2.78, 3.5: -2.74, 4.5: -2.63},
    ("pinwheel", "public-prior", "ma"): {1.5: -3.05, 2.5: -2.40, 3.5: -1.91, 4.5: -1.87},
    ("pinwheel", "private-prior", "ma"): {1.5: -2.77, 2.5: -2.70, 3.5: -2.62, 4.5: -2.47},
    ("pinwheel", "dp-mog", "ma"): {1.5: -2.75, 2.5: -2.76, 3.5: -2.76, 4.5: -2.76},
    ("pinwheel", "dp-mog-10", "ma"): {1.5: -2.76, 2.5: -2.88, 3.5: -2.77, 4.5: -2.77},
}

#: Components of the paper's DP-MoG, by data set.
COMPONENTS = {
    "life-science": 3,
    "power": 10,
    "gowalla": 11,
    "half-moons": 3,
    "gaussians": 8,
    "pinwheel": 5,
}


@final
@dataclasses.dataclass(frozen=True)
class Recipe:
    """The released code's settings, the same for every data set."""

    blocks: int = 5
    width: int = 100
    depth: int = 2
    learning_rate: float = 7e-4
    batch_size: int = 100
    noise_multiplier: float = 2.1
    clipping_norm: float = 12.0


RECIPE = Recipe()


def published(dataset: str, method: str, accountant: str, epsilon: float) -> float | None:
    """The paper's figure for a row of its tables; for our own rows, the best of its private ones.

    Example:
        >>> published("life-science", "dp-mog", "ma", 1.0)
        5.09
        >>> published("life-science", "ours", "pld", 1.0)
        9.41
        >>> published("life-science", "ours", "pld", 3.0) is None
        True
    """
    for name in (accountant, "ma"):
        if (dataset, method, name) in PUBLISHED:
            return PUBLISHED[dataset, method, name].get(epsilon)
    if not method.startswith("ours"):
        return None
    return _best_private(dataset, epsilon)


def _best_private(dataset: str, epsilon: float) -> float | None:
    rows = (
        figures.get(epsilon)
        for (name, method, _), figures in PUBLISHED.items()
        if name == dataset and method != "public-prior"
    )
    return max((figure for figure in rows if figure is not None), default=None)
