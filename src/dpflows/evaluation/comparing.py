"""All measures by name, and a model compared with rows by each of them."""

from dpflows.evaluation.fidelity import Correlations, Kolmogorov, PairCells, TotalVariation
from dpflows.evaluation.likelihood import LogLikelihood
from dpflows.evaluation.measures import Figures, Measure, Subject

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (LogLikelihood(), Kolmogorov(), TotalVariation(), Correlations(), PairCells())
}


def evaluate(subject: Subject) -> dict[str, Figures]:
    """Every measure's figures. INTERNAL: they are computed from the rows as they are.

    Example:
        >>> import numpy as np
        >>> from dpflows import DPGaussian
        >>> from dpflows.privacy.randomness import Entropy
        >>> from dpflows.table.reading import read_table
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussian(1.0, 1e-5, bounds=(-4, 4)).fit(rows)
        >>> table = read_table(rows, model.encoding_.schema)
        >>> sorted(evaluate(Subject.of(model, table, Entropy.from_os())))
        ['correlations', 'kolmogorov', 'log-likelihood', 'pair-cells', 'total-variation']
    """
    return {measure.name: measure.of(subject) for measure in MEASURES.values()}
