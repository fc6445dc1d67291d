"""A stage of a fit: what it will release is known before a row is read.

A fit is a sequence of stages. Each takes the work of the stages before it, makes its releases from
the private rows, and hands on the result.

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
from dpflows.models.distributions import Mixture
from dpflows.models.normalisers import Normaliser
from dpflows.privacy.events import Event
from dpflows.privacy.randomness import Entropy, Stream
from dpflows.table.encoding import Encoding, MixedEncoding
from dpflows.table.reading import Table
from dpflows.training.checkpoints import Before, Checkpoints
from dpflows.training.dp_sgd import Callbacks

T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class Work:
    """What a run has so far, handed from stage to stage.

    Attributes:
        table: The private table, as it was read.
        entropy: Where noise, batches and initial values come from.
        journal: Where the run is kept, if anywhere.
        callbacks: Progress and stop hooks of training.
        encoding: How rows become points. Set by the first stage.
        rows: The private rows as points of the encoding. Set by the first stage.
        normaliser: From the points' units to the model's. Released.
        prior: What a flow starts from, in the model's units. Released.
        bins: The merged bins of every column of a mixed table. Released.
        counts: Noisy marginals of those bins. Released.
        points: The private rows as the model reads them.
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
        """The work with what a stage made."""
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
    """What an earlier stage made.

    Example:
        >>> needed(3)
        3
    """
    if value is None:
        raise InputError("the plan lacks a stage that this one needs; make it with plan()")
    return value


def jax_key(entropy: Entropy, stream: Stream, *, step: int = 0) -> PRNGKeyArray:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))


class Stage(abc.ABC):
    """A part of a fit: its events, and how they are released.

    A stage holds all that it needs besides the work of the stages before it, so that nothing that
    changes after the plan was made changes what is released.
    """

    #: Whether what the stage released is kept with the run, so that it is released once.
    is_kept = False

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """What the stage will release."""

    @abc.abstractmethod
    def run(self, work: Work) -> Work:
        """Make the stage's releases."""

    def keep(self, work: Work) -> Before:
        """What is kept of the stage in the run's file: a JSON-ready header, and arrays."""
        return {}, {}

    def resume(self, work: Work, kept: Before) -> Work:
        """As ``run``, with what an earlier start of the run released."""
        raise InputError("this stage is not kept; remove the checkpoint and start again")


@final
@dataclasses.dataclass(frozen=True)
class Recorded(Stage):
    """A stage that was run elsewhere: of a plan read from a file, only the events are known."""

    released: tuple[Event, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """What was released."""
        return self.released

    def run(self, work: Work) -> Work:
        """Refused: a file does not say how to release its events again."""
        raise InputError("a plan that was read from a file cannot be run; fit again")
