"""All measures by name, and a model compared with rows by each of them."""

from dpflows.evaluation.association import Correlations
from dpflows.evaluation.fidelity import Kolmogorov, PairCells, TotalVariation, TripleCells
from dpflows.evaluation.likelihood import LogLikelihood
from dpflows.evaluation.measures import Figures, Measure, Subject
from dpflows.evaluation.usefulness import Detection, Prediction

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        LogLikelihood(),
        Kolmogorov(),
        TotalVariation(),
        Correlations(),
        PairCells(),
        TripleCells(),
        Prediction(),
        Detection(),
    )
}


def evaluate(subject: Subject) -> dict[str, Figures]:
    """The figures of every measure that has some. INTERNAL: computed from the rows as they are.

    Example:
        >>> import numpy as np
        >>> from dpflows import DPGaussian
        >>> from dpflows.privacy.randomness import Entropy
        >>> from dpflows.table.reading import read_table
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussian(1.0, 1e-5, bounds=(-4, 4)).fit(rows)
        >>> table = read_table(rows, model.encoding_.schema)
        >>> sorted(evaluate(Subject.of(model, table, Entropy.from_os())))
        ['correlations', 'detection', 'kolmogorov', 'log-likelihood', 'pair-cells', ...]
    """
    found = {measure.name: measure.of(subject) for measure in MEASURES.values()}
    return {name: figures for name, figures in found.items() if figures or MEASURES[name].each}
