"""A stage of a fit, whose releases are known before a row is read.

A fit is a sequence of stages. Each takes the work of the stages before it, makes its releases from
the private rows, and passes on the result.

Guarantee:
    ``Stage.run`` releases what ``Stage.events`` lists and nothing else. While a plan runs a stage,
    a mechanism that releases something else fails before its value is returned (``only_these``).
"""

import abc
import dataclasses
from typing import Any, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from dpflows.errors import InputError
from dpflows.models.density import Mixture
from dpflows.models.normalisers import Normaliser
from dpflows.privacy.events import Event
from dpflows.privacy.randomness import Entropy, Stream
from dpflows.table.reading import Encoding, MixedEncoding, Table
from dpflows.training.checkpoints import Before, Checkpoints
from dpflows.training.dp_sgd import Callbacks

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class Work:
    """The intermediate results of a run, passed from stage to stage.

    Attributes:
        table: The private table, as it was read.
        entropy: Source of randomness of noise, batches and initial values.
        journal: The run's checkpoints, if any.
        callbacks: Progress and stop hooks of training.
        encoding: The encoding of rows as points. Set by the first stage.
        rows: The private rows as points of the encoding. Set by the first stage.
        normaliser: The map from the points' units to the model's. Released.
        prior: The prior of a flow, in the model's units. Released.
        bins: The merged bins of every column of a mixed table. Released.
        counts: Noisy marginals of those bins. Released.
        points: The private rows in the model's units.
        model: The model. Released, or drawn from public randomness.
        parameters: Statistics by name. Released.
        density: The fitted estimator, for stages after the fit. Released.
        threshold: The threshold of a detector. Released.
        score: How well the density fits the rows. Released.
    """

    table: Table
    entropy: Entropy
    journal: Checkpoints | None = None
    callbacks: Callbacks | None = None
    encoding: Encoding | MixedEncoding | None = None
    rows: np.ndarray | None = None
    normaliser: Normaliser | None = None
    prior: Mixture | None = None
    bins: tuple[Any, ...] | None = None
    counts: Any = None
    points: np.ndarray | None = None
    model: Any = None
    parameters: dict[str, np.ndarray] | None = None
    density: Any = None
    threshold: Any = None
    score: float | None = None

    def after(self, **made: Any) -> "Work":
        """The work with the results of a stage."""
        return dataclasses.replace(self, **made)

    @property
    def box(self) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
        """The public bounds of the points."""
        return self.numeric.low, self.numeric.high

    @property
    def numeric(self) -> Encoding:
        """The encoding of a table of numbers."""
        if not isinstance(self.encoding, Encoding):
            raise TypeError("rows must be encoded as points of a box")
        return self.encoding

    @property
    def mixed(self) -> MixedEncoding:
        """The encoding of a table of mixed kinds."""
        if not isinstance(self.encoding, MixedEncoding):
            raise TypeError("rows must be encoded as columns of mixed kinds")
        return self.encoding


def needed(value: T | None) -> T:
    """The result of an earlier stage, which must exist.

    Example:
        >>> needed(3)
        3
    """
    if value is None:
        raise InputError("the plan lacks a stage that a later one needs; make the plan with plan()")
    return value


def jax_key(entropy: Entropy, stream: Stream, *, step: int = 0) -> PRNGKeyArray:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))


class Stage(abc.ABC):
    """A part of a fit: its events, and the computation that releases them.

    A stage holds everything it needs except the work of the stages before it, so that later changes
    to settings or files do not change what is released.
    """

    #: Whether what the stage released is kept with the run, so that it is released once.
    is_kept = False

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """The events of the stage."""

    @abc.abstractmethod
    def run(self, work: Work) -> Work:
        """Make the stage's releases."""

    def keep(self, work: Work) -> Before:
        """The stage's results for the checkpoint: a JSON-ready header, and arrays."""
        return {}, {}

    def resume(self, work: Work, kept: Before) -> Work:
        """As ``run``, with the releases of an earlier start of the run."""
        raise InputError("this stage cannot be resumed; remove the checkpoint and start again")


@final
@dataclasses.dataclass(frozen=True)
class Recorded(Stage):
    """A stage of a plan read from a file, of which only the events are known."""

    released: tuple[Event, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """The released events."""
        return self.released

    def run(self, work: Work) -> Work:
        """Refused: a file does not describe how to release its events again."""
        raise InputError(
            "a plan that was read from a file cannot be run; make a new plan by fitting again"
        )
