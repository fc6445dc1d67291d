"""Every table and figure of the paper by name; a new one is one class and one line."""

from dpflows.errors import InputError
from dpflows.experiments.adult import Adult
from dpflows.experiments.anomalies import AnomalyROC, EnsembleVotes, LabelledAnomalies
from dpflows.experiments.likelihoods import Downstream, Histograms, Likelihoods, Planes
from dpflows.experiments.recipe_studies import Accountants, RecipeParts
from dpflows.experiments.running import Experiment

_PRIORS = ("ours", "ours-flow", "private-prior", "public-prior", "dp-mog", "dp-mog-10")

_ALL: tuple[Experiment, ...] = (
    Accountants(),
    Likelihoods("life-science", "Life Science: test log-likelihood", (0.5, 1.0, 2.0, 4.0)),
    Likelihoods("half-moons", "Half-Moons: test log-likelihood", (1.5, 2.25, 3.0), 3),
    Likelihoods("gaussians", "Gaussians: test log-likelihood", (1.5, 2.25, 3.0), 3),
    Likelihoods(
        "pinwheel",
        "Pinwheel: test log-likelihood (the paper prints its negative)",
        (1.5, 2.5, 3.5, 4.5),
        3,
        (*_PRIORS, "paper-recipe"),
    ),
    Likelihoods("power", "Power: test log-likelihood", (1.25, 1.75, 2.25), 3, long_run_folds=1),
    Likelihoods("gowalla", "Gowalla: test log-likelihood", (2.25, 3.5, 4.0), 3, long_run_folds=1),
    RecipeParts(),
    Downstream(),
    Histograms(),
    Planes(),
    AnomalyROC(),
    EnsembleVotes(),
    LabelledAnomalies(),
    Adult(),
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def experiments_called(name: str) -> list[Experiment]:
    """The experiment of a name, or every one for ``all``.

    Example:
        >>> [experiment.name for experiment in experiments_called("downstream")]
        ['downstream']
    """
    if name == "all":
        return list(_ALL)
    if name not in EXPERIMENTS:
        raise InputError(f"NAME must be one of {', '.join([*EXPERIMENTS, 'all'])}; got {name!r}")
    return [EXPERIMENTS[name]]
