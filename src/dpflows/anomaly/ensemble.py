"""DP-AD: an ensemble of densities, each of a disjoint part of the rows, that votes privately.

``QueryPlan`` states, before a row is read, how many answers the budget allows and at what cost.
``VotingEnsemble`` combines the members with the query budget that charges every answer.
"""

import dataclasses
import functools
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from jaxtyping import Float, Int64
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.anomaly.members import (
    INTERNAL_STAMP,
    Cut,
    Member,
    check_backend,
    checked_density,
    count_normal,
    fit_members,
    made_up_rows,
    non_private,
    read_members,
    seeds_for,
    written_members,
)
from dpflows.anomaly.query_budget import (
    FileCounter,
    LedgerCounter,
    MemoryCounter,
    QueryBudget,
    read_taken,
)
from dpflows.anomaly.voting import Mechanism, VoteSettings, mechanism_for, nominal_rows, split
from dpflows.errors import BudgetError, InputError
from dpflows.estimators.base import DensityEstimator, entropy_for
from dpflows.estimators.charging import note_fit, require_price, warn_of_transformers
from dpflows.estimators.persistence import save
from dpflows.pipeline.domain import TableSpec, feature_names, rows_to_score, stamps_of
from dpflows.privacy.accounting import StepFilter
from dpflows.privacy.accounting.certificates import check_plan, read_guarantee
from dpflows.privacy.accounting.registry import PrivacyPlan
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget, Guarantee, large_delta_caveats, require_small_delta
from dpflows.privacy.ledger import Ledger
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Encoding, Form
from dpflows.table.schema import Schema

#: Finer prices buy millions of answers, which take an accountant minutes to add up.
_FINEST = 2000


@final
@dataclasses.dataclass(frozen=True)
class QueryPlan(PrivacyPlan):
    """The charges that a budget allows.

    Attributes:
        budget: The budget of all answers together.
        accountant: The accountant's name.
        mechanism: The name of the voting mechanism.
        terms: The settings of the mechanism.

    Guarantee:
        ``guarantee`` covers all charges that will ever be granted, whether or not they are used.

    Example:
        >>> vote = VoteSettings(10, 0.1, "zero-out", 1)
        >>> plan = QueryPlan(Budget(1.0, 1e-6), "pld", "geometric", vote)
        >>> plan.charges
        10
    """

    budget: Budget
    accountant: str
    mechanism: str
    vote: VoteSettings

    def __post_init__(self) -> None:
        if not self.budget.is_private:
            raise InputError(
                "total_budget.epsilon must be finite: members are fitted without noise, so only "
                "the limited number of noisy answers protects people"
            )
        if self.vote.epsilon < self.budget.epsilon / _FINEST:
            raise InputError(
                f"epsilon_per_query must be at least 1/{_FINEST} of total_budget.epsilon, got "
                f"{self.vote.epsilon}; answers with less epsilon would be nearly random"
            )
        if self.charges == 0:
            raise BudgetError(
                f"epsilon_per_query {self.vote.epsilon} is more than total_budget allows for a "
                "single charge; decrease it, or increase total_budget"
            )

    def voting(self) -> Mechanism:
        """The voting mechanism."""
        return mechanism_for(self.mechanism, self.vote)

    @property
    def event(self) -> Event:
        """One charge."""
        return self.voting().event

    @functools.cached_property
    def charges(self) -> int:
        """Number of charges that the budget allows."""
        return StepFilter(self.budget, self.event, accountant=self.accountant).limit

    @property
    def events(self) -> tuple[Event, ...]:
        """All charges that will ever be granted."""
        return (dataclasses.replace(self.event, count=self.charges),)

    @property
    def sentence(self) -> str:
        """The number of charges and what each of them covers."""
        what = self.voting().charge
        return f"The budget allows {self.charges} charges, each for {what}."

    def settings(self) -> dict[str, Any]:
        """The settings of an ensemble with this offer."""
        return {
            "k": self.vote.voters,
            "epsilon_per_query": self.vote.epsilon,
            "total_budget": self.budget,
            "mechanism": self.mechanism,
            "alarms": self.vote.alarms,
            "accountant": self.accountant,
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``from_dict`` reads it back."""
        return {
            "budget": dataclasses.asdict(self.budget),
            "accountant": self.accountant,
            "mechanism": self.mechanism,
            "parts": self.vote.voters,
            "epsilon_per_query": self.vote.epsilon,
            "alarms": self.vote.alarms,
            "charges": self.charges,
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "QueryPlan":
        """Read back ``to_dict``; the content may be hostile."""
        budget = Budget(**description["budget"])
        vote = VoteSettings(
            _whole(description["parts"]),
            float(description["epsilon_per_query"]),
            budget.neighbours,
            _whole(description["alarms"]),
        )
        return cls(budget, str(description["accountant"]), str(description["mechanism"]), vote)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise InputError("parts and alarms must be whole numbers")
    return value


Arrays = dict[str, np.ndarray]

_HEX = re.compile("[0-9a-f]{32}")


@final
class VotingEnsemble:
    """Members that vote, a mechanism that adds noise, and a meter that counts answers.

    Args:
        members: One per part.
        offer: The charges that the budget allows.
        taken: Number of charges made before.
        identity: A random name by which it recognises its file; drawn if not given.
        bound: The identity of the ledger without which it does not answer, if any.

    Guarantee:
        ``answers`` is the only output computed from the members. It charges first. With a ledger,
        the ledger counts the answers of all copies together.
    """

    def __init__(
        self,
        members: Sequence[Member],
        plan: QueryPlan,
        *,
        taken: int = 0,
        identity: str | None = None,
        bound: str | None = None,
    ) -> None:
        self._members, self._voting = tuple(members), plan.voting()
        self._queries = QueryBudget(plan.budget, plan.event, plan.accountant, MemoryCounter(taken))
        self._identity = secrets.token_hex(16) if identity is None else identity
        self._file: Path | None = None
        self._bound, self._is_connected = bound, bound is None
        self.plan = plan

    def connect(self, ledger: Ledger | None) -> None:
        """Charge answers to the ledger that the ensemble was made with, and to no other."""
        if ledger is None:
            return
        if ledger.identity != self._bound:
            raise InputError(
                "ledger must be the one that the ensemble was fitted with, got "
                + ("another" if self._bound else "a ledger for an ensemble fitted without one")
            )
        if not self._is_connected:
            self._queries.move_to(LedgerCounter(ledger, self._identity, self.plan.event))
            self._is_connected = True

    def answers(self, rows: Float[np.ndarray, "rows columns"], entropy: Entropy) -> list[bool]:
        """Whether each row is normal: either all rows are answered, or none is read."""
        self._require_ledger()
        with self._voting.admitted(self._queries, len(rows), entropy) as ask:
            return [ask(count) for count in count_normal(self._members, rows)]

    def remaining(self) -> int:
        """The number of rows that will still be answered, whatever the answers are."""
        self._require_ledger()
        return self._voting.guaranteed(self._queries)

    def spent(self) -> float:
        """The epsilon of all charges so far."""
        self._require_ledger()
        return self._queries.spent()

    def keep(self, detector: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the detector that owns this ensemble to its first and only file.

        Copies of an ensemble that is charged to a ledger share one count.
        """
        if self._bound is not None:
            save(detector, path, role="detector", overwrite=overwrite)
            return
        with self._queries.held():
            if self._file is None:
                save(detector, path, role="detector", overwrite=overwrite)
                self.charge_in(path)
            elif os.path.realpath(path) != str(self._file):
                raise InputError(
                    f"the ensemble is charged in {str(self._file)!r}; a second file would have its "
                    "own budget, so move that file instead and load it"
                )

    def charge_in(self, path: str | os.PathLike[str]) -> None:
        """Write every further charge to this file, unless a ledger has them."""
        if self._bound is not None:
            return
        counter = FileCounter(path, self._identity)
        self._queries.move_to(counter)
        self._file = counter.path

    def to_file(self) -> tuple[dict[str, Any], Arrays]:
        """A JSON-ready header and arrays."""
        members, arrays = written_members(self._members)
        taken = self._queries.taken() if self._bound is None else 0
        queries = {"taken": taken, "identity": self._identity}
        header = {"offer": self.plan.to_dict(), "members": members, "meter": queries}
        return header | {"ledger": self._bound}, arrays

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: Arrays, *, columns: int) -> "VotingEnsemble":
        """Read back what ``to_file`` gave; the content may be hostile."""
        plan, queries = QueryPlan.from_dict(header["offer"]), header["meter"]
        expected = plan.vote.voters
        members = read_members(header["members"], arrays, expected=expected, columns=columns)
        return cls(
            members,
            plan,
            taken=read_taken(queries),
            identity=_checked(queries["identity"], "identity"),
            bound=None if (bound := header.get("ledger")) is None else _checked(bound, "ledger"),
        )

    def _require_ledger(self) -> None:
        if not self._is_connected:
            raise InputError(
                "the ensemble is charged to a ledger and does not answer without it; give the "
                "ledger that it was fitted with (ledger=, --ledger)"
            )

    def __reduce__(self) -> NoReturn:
        raise InputError("an ensemble cannot be copied: a copy would have its own budget")


def _checked(name: Any, what: str) -> str:
    """A name from a file, which may be hostile."""
    if not isinstance(name, str) or _HEX.fullmatch(name) is None:
        raise InputError(f"the file's {what} must be 32 hexadecimal digits")
    return name


#: What detectors usually have and this one must not.
_LEAKING = ("score_samples", "decision_function")
UNCOMPARED_DELTA = (
    "the number of rows is private here, so delta was not compared with one over the number of "
    "rows; the curator must choose it small enough."
)
_ANSWERS_ALONE = (
    "The release below is the set of all these answers, never the detector or its file:"
)


@final
class DPEnsembleDetector(OutlierMixin, BaseEstimator):
    """An ensemble that flags anomalies by private votes; every answer is charged.

    Rows are split into ``k`` parts, independently of each other, and a density without noise is
    fitted to every part. For a queried row each density votes, and only the noisy majority is
    released: one person is in one part, hence changes one vote.

    Args:
        k: Number of parts.
        estimator: The density of every part, with a schema or bounds; its epsilon is set to
        infinity. ``None`` is a ``DPGaussianMixture``.
        epsilon_per_query: The epsilon of one answer; of one stream for ``sparse-vector``.
        total_budget: The budget of all answers together. Its ``neighbours`` decide how
            rows are split: by content for ``add-remove``, by position otherwise.
        mechanism: ``geometric``, ``exponential`` (the original), or ``sparse-vector``,
            whose streams are charged once and end after ``alarms`` reported anomalies.
        contamination: The share of a part's own rows that its density calls anomalies.
        threshold: ``part``, the quantile at ``contamination``; a log-density in original
            units, common to all parts; ``accuracy`` or ``youden``, the best on ``public``.
        public: Labelled rows that are public, as ``(rows, labels)`` with labels +1 for
            normal and -1 for anomalies.
        alarms: Number of anomalies that a stream reports before it ends.
        accountant: The accountant's name.
        n_jobs: Number of parts that are fitted in parallel.
        backend: ``loky``, ``threading``, ``sequential``, ``dask`` or ``ray``.
        allow_large_delta: Allow a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee. Where rows may be added their number is private, so it is
            not compared with delta, and the guarantee says so.
        insecure_test_seed: Seed for tests; makes everything reproducible and NOT PRIVATE.

    Attributes:
        guarantee_: The guarantee of all answers that will ever be given.
        plan_: The number of answers, and their mechanism.

    Guarantee:
        Only answers may be released. All of them together cost at most ``total_budget``, however
        queries are chosen and from any number of threads; an answer is charged before it is
        computed. Whether a query is refused depends only on the charges. The object and its file
        hold densities without noise and must not be published. A part that cannot be fitted votes
        anomaly: an error would reveal something about its rows.

    Example:
        >>> from dpflows import DPGaussian
        >>> rows = np.random.default_rng().normal(size=(2000, 2)).clip(-6, 6)
        >>> ensemble = DPEnsembleDetector(
        ...     20, DPGaussian(bounds=(-6, 6)), epsilon_per_query=2.0,
        ...     total_budget=Budget(6.0, 1e-6), contamination=0.01,
        ... ).fit(rows)
        >>> ensemble.plan().sentence
        'The budget allows 3 charges, each for one answer.'
        >>> ensemble.predict(np.array([[0.0, 0.0], [5.5, -5.5]])).tolist()
        [1, -1]
        >>> ensemble.remaining_queries()
        1
    """

    guarantee_: Guarantee
    plan_: QueryPlan
    encoding_: Encoding
    form_: Form
    _voters: VotingEnsemble

    def __init__(
        self,
        k: int = 10,
        estimator: DensityEstimator | None = None,
        *,
        epsilon_per_query: float = 0.1,
        total_budget: Budget = Budget(1.0, 1e-6),  # noqa: B008 (frozen)
        mechanism: str = "geometric",
        contamination: float = 0.1,
        threshold: float | str = "part",
        public: Any = None,
        alarms: int = 1,
        accountant: str = "pld",
        n_jobs: int | None = None,
        backend: str | None = None,
        allow_large_delta: bool = False,
        insecure_test_seed: int | None = None,
    ) -> None:
        self.k = k
        self.estimator = estimator
        self.epsilon_per_query = epsilon_per_query
        self.total_budget = total_budget
        self.mechanism = mechanism
        self.contamination = contamination
        self.threshold = threshold
        self.public = public
        self.alarms = alarms
        self.accountant = accountant
        self.n_jobs = n_jobs
        self.backend = backend
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self) -> QueryPlan:
        """The charges that the budget allows; reads no row."""
        vote = VoteSettings(
            self.k, self.epsilon_per_query, self.total_budget.neighbours, self.alarms
        )
        return QueryPlan(self.total_budget, self.accountant, self.mechanism, vote)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        on_member: Callable[[int], None] | None = None,
    ) -> "DPEnsembleDetector":
        """Fit a density to every part of the rows of ``X``.

        Args:
            X: A table without missing values, in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: The ledger to which answers are charged, those of all copies of the file
            together.
            on_member: Called after each member with the number that are ready.
        """
        warn_of_transformers()
        plan, entropy = self.plan(), self._entropy()
        check_backend(self.backend)
        wanted, neighbours = checked_density(self.estimator), plan.budget.neighbours
        table = TableSpec.resolve(wanted.schema, wanted.bounds, None).read(X)
        stamps = (*stamps_of(table.schema), *([entropy.stamp] if entropy.stamp else []))
        require_price(() if ledger is None else stamps)
        caveats = self._caveats(table.rows)
        charged = ledger is not None
        note_fit(table, plan.events, plan.budget, stamps=stamps, is_charged=charged)
        encoding = Encoding(table.schema)
        cut = Cut.asked(self.threshold, self.contamination, self.public, table.schema)
        made_up = made_up_rows(encoding, nominal_rows(table, self.k, neighbours), entropy)
        members = fit_members(
            non_private(wanted, table.schema),
            split(table, self.k, neighbours, entropy),
            cut,
            seeds=seeds_for(entropy, self.k),
            jobs=self.n_jobs,
            backend=self.backend,
            on_member=on_member,
            rehearsal=made_up,
        )
        voters = VotingEnsemble(members, plan, bound=None if ledger is None else ledger.identity)
        voters.connect(ledger)
        promise = plan.guarantee(stamps=stamps, caveats=caveats)
        return self._adopt(voters, promise, encoding, table.form)

    def predict(self, X: Any, *, ledger: Ledger | None = None) -> Int64[np.ndarray, " n"]:
        """+1 for normal rows, -1 for anomalies; all are answered, or none.

        Args:
            X: The rows.
            ledger: The one that the ensemble was fitted with; needed once after loading.

        Raises:
            BudgetError: fewer answers than rows are left; nothing was charged.
        """
        check_is_fitted(self, "guarantee_")
        self._voters.connect(ledger)
        answers = self._voters.answers(self._questions(X), self._entropy())
        return np.where(answers, 1, -1).astype(np.int64)

    def answer(self, row: Any, *, ledger: Ledger | None = None) -> bool:
        """Whether one row, given as cells or as a table, is normal.

        Raises:
            BudgetError: no answer is left; nothing was charged.
        """
        check_is_fitted(self, "guarantee_")
        is_flat = isinstance(row, list | tuple | np.ndarray) and np.ndim(row) == 1
        if len(rows := self._questions([row] if is_flat else row)) != 1:
            raise InputError(f"row must be one row, got {len(rows)}; use predict for several")
        return bool(self.predict(rows, ledger=ledger)[0] == 1)

    def remaining_queries(self) -> int:
        """The number of rows that will still be answered.

        With ``sparse-vector`` this is a lower bound, as if every answer were an anomaly; normal
        answers are free.
        """
        check_is_fitted(self, "guarantee_")
        return self._voters.remaining()

    def spent(self) -> float:
        """The epsilon of all answers so far; ``guarantee_`` states the total."""
        check_is_fitted(self, "guarantee_")
        return self._voters.spent()

    def privacy_statement(self) -> str:
        """What may be released, and the guarantee of all answers together."""
        check_is_fitted(self, "guarantee_")
        promise = self.guarantee_.privacy_statement()
        return f"{INTERNAL_STAMP}\n{self.plan_.sentence} {_ANSWERS_ALONE}\n{promise}"

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one INTERNAL ``.dpflow`` file, in which all further charges are recorded.

        A second file would have its own budget, so it is refused.

        Args:
            path: Where the file goes.
            overwrite: Whether an existing file may be overwritten.
        """
        check_is_fitted(self, "guarantee_")
        self._voters.keep(self, path, overwrite=overwrite)

    def opened_from(self, path: str | os.PathLike[str]) -> None:
        """Record every further charge in this file before the answer is given."""
        self._voters.charge_in(path)

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and arrays; INTERNAL, for the members are not private."""
        check_is_fitted(self, "guarantee_")
        header, arrays = self._voters.to_file()
        return header | {
            "internal": True,
            "stamp": INTERNAL_STAMP,
            "contamination": self.contamination,
            "threshold": self.threshold,
            "guarantee": self.guarantee_.to_dict(),
            "schema": self.encoding_.schema.to_dict(),
            "form": self.form_.to_dict(),
        }, arrays

    @classmethod
    def from_file(
        cls, header: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> "DPEnsembleDetector":
        """Read back what ``to_file`` gave; the content may be hostile."""
        schema = Schema.from_dict(header["schema"])
        voters = VotingEnsemble.from_file(header, arrays, columns=len(schema.columns))
        ensemble = cls(
            **voters.plan.settings(),
            contamination=float(header["contamination"]),
            threshold=header["threshold"],
        )
        promise, form = read_guarantee(header["guarantee"]), Form.from_dict(header["form"])
        check_plan(promise, voters.plan)
        return ensemble._adopt(voters, promise, Encoding(schema), form)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _LEAKING:
            raise AttributeError(
                f"an ensemble has no {name}: its members are fitted without noise, so scores would "
                "not be private; use predict or answer, or DPAnomalyDetector, whose scores cost no "
                "privacy"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        shown = super().__repr__(N_CHAR_MAX)
        return f"{shown}  # {INTERNAL_STAMP}" if "guarantee_" in vars(self) else shown

    def _adopt(
        self, voters: VotingEnsemble, guarantee: Guarantee, encoding: Encoding, form: Form
    ) -> "DPEnsembleDetector":
        self._voters, self.plan_, self.guarantee_ = voters, voters.plan, guarantee
        self.encoding_, self.form_ = encoding, form
        self.n_features_in_ = len(encoding.schema.columns)
        names = feature_names(form, encoding.schema)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _caveats(self, rows: int) -> tuple[str, ...]:
        """The caveats about delta; refuses a large one that was not allowed."""
        if self.total_budget.neighbours == "add-remove":
            return (UNCOMPARED_DELTA,)
        require_small_delta(self.total_budget, rows, allowed=self.allow_large_delta)
        return large_delta_caveats(self.total_budget, rows)

    def _questions(self, X: Any) -> np.ndarray:
        return rows_to_score(X, self.encoding_.schema, type(self).__name__).matrix

    def _entropy(self) -> Entropy:
        return entropy_for(self.insecure_test_seed)
