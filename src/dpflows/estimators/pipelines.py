"""Whether a step before the estimator learned from the rows without paying.

A ``StandardScaler`` in front of an estimator reads the mean and the deviation of every column.
They are not noisy and no guarantee covers them, but they are part of the pipeline's output.
"""

import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from dpflows.errors import UnpaidTransformerWarning
from dpflows.estimators.repeats import outside

#: What a step knows of a table's shape, which is public.
_SHAPE = frozenset({"n_features_in_", "feature_names_in_", "n_output_features_", "n_features_out_"})
#: How far up a pipeline may be; searches and nested pipelines are a few calls each.
_DEEPEST = 60


def warn_of_transformers() -> None:
    """Warn if the caller is a scikit-learn pipeline whose earlier steps learned from the rows.

    Example:
        >>> warn_of_transformers()
    """
    for pipeline in _pipelines(sys._getframe(1)):
        for name, step in pipeline.steps[:-1]:
            if learned(step):
                warnings.warn(
                    _message(name, step), UnpaidTransformerWarning, stacklevel=outside() - 1
                )


def learned(step: Any) -> bool:
    """Whether a fitted step of a pipeline keeps more of the rows than their shape.

    Example:
        >>> import numpy as np
        >>> from sklearn.preprocessing import Normalizer, StandardScaler
        >>> learned(StandardScaler().fit(np.eye(3))), learned(Normalizer().fit(np.eye(3)))
        (True, False)
    """
    if step is None or isinstance(step, str):
        return False
    parts = _parts(step)
    if parts is not None:
        return any(learned(part) for part in parts)
    return bool(_needs_fit(step) and _learned_attributes(step) and not hasattr(step, "guarantee_"))


def _parts(step: Any) -> list[Any] | None:
    """The steps that a composed one is made of; ``None`` if it is simple."""
    if isinstance(step, Pipeline):
        return [part for _, part in step.steps]
    if isinstance(step, FeatureUnion):
        return [part for _, part in step.transformer_list]
    fitted = vars(step).get("transformers_")
    return None if fitted is None else [part for _, part, *_ in fitted]


def _needs_fit(step: Any) -> bool:
    try:
        return get_tags(step).requires_fit
    except (AttributeError, TypeError):
        # without tags nothing is known, and most steps learn
        return True


def _learned_attributes(step: Any) -> list[str]:
    names = [name for name in vars(step) if name.endswith("_") and not name.startswith("_")]
    return [name for name in names if name not in _SHAPE and vars(step)[name] is not None]


def _pipelines(frame: types.FrameType | None) -> Iterator[Pipeline]:
    """The pipelines that are being fitted, the innermost first."""
    seen: list[Pipeline] = []
    for _ in range(_DEEPEST):
        if frame is None:
            return
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and not any(owner is one for one in seen):
            seen.append(owner)
            yield owner
        frame = frame.f_back


def _message(name: str, step: Any) -> str:
    return (
        f"the step {name!r} ({type(step).__name__}) before the estimator learned from the rows "
        "without noise, and the guarantee does not cover what it learned. Leave it out: declare "
        "bounds or a schema, and the estimator brings the columns to comparable units within its "
        "own budget; or replace it by a step with fixed, public numbers (FunctionTransformer)"
    )
