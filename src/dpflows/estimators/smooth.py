"""Tables of numbers: a normalizing flow over a box, with a normaliser or a prior before it."""

from typing import Any, final

import numpy as np

from dpflows.caching import keep_compiled_programs
from dpflows.errors import InputError
from dpflows.estimators.boxes import describe_density, read_density
from dpflows.estimators.charging import Job
from dpflows.estimators.parameters import (
    fresh_model,
    parameter_arrays,
    require_room,
    with_parameters,
)
from dpflows.estimators.preparing import Beginning, Preparation, Prepared, prepare
from dpflows.estimators.ways import Way
from dpflows.flows.architectures import Architecture
from dpflows.flows.density import Defended
from dpflows.privacy.events import check_choice
from dpflows.privacy.randomness import Entropy
from dpflows.table.encoding import Encoding
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.defaults import rule_for
from dpflows.training.fitting import fit_model
from dpflows.training.initialising import (
    PAPER_FORMULA,
    PAPER_STAMP,
    Initialisation,
    plan_initialisation,
)
from dpflows.training.optimizers import OPTIMIZERS, Descent, NaturalGradient, name_of
from dpflows.training.plan import Plan, make_plan


@final
class SmoothWay(Way):
    """A flow over the box of the declared bounds.

    Guarantee:
        Bounds, normaliser or prior, initialisation and training: each is in the plan.
    """

    def plan(self, rows: int, columns: int) -> Plan:
        """What a fit would do with a table of this shape; reads no row."""
        flow = self.flow
        budget, told = flow._budget(), flow._declarations()
        beginning = self._beginning()
        share = beginning.share(budget, columns=columns)
        settings = flow._settings(
            architecture=self._architecture(),
            learning_rate=beginning.rate_after(share, flow.learning_rate),
            optimizer=self._optimizer(),
        )
        start = self._initialisation(rows, columns).events if share < 1 else ()
        prepared = self._preparation(rows, columns).events
        before = (*told.events(budget, columns), *prepared, *start)
        return make_plan(
            budget,
            rows=rows,
            columns=columns,
            settings=settings,
            before=before if budget.is_private else (),
            train=share < 1,
        )

    def learn(self, job: Job) -> None:
        """Prepare, train and keep what came of it."""
        flow, plan, entropy = self.flow, job.plan, job.entropy
        ways = self._preparation(plan.rows, plan.columns), flow._declarations()
        intake, prepared = prepare(*ways, job.table, plan.budget, job.journal, entropy)
        rows = prepared.normaliser.apply(intake.rows)
        model = fit_model(
            self._start(plan, intake.encoding, prepared, rows, job.journal, entropy),
            rows,
            plan,
            entropy=entropy,
            callbacks=job.callbacks,
            checkpoints=job.journal,
            known_to_taps=True,
        )
        flow.prepared_ = prepared
        flow._release(intake, plan, model, prepared.normaliser, entropy)

    def _start(
        self,
        plan: Plan,
        encoding: Encoding,
        prepared: Prepared,
        rows: np.ndarray,
        checkpoints: Checkpoints | None,
        entropy: Entropy,
    ) -> Defended:
        """An untrained model; one that goes on from a checkpoint needs no start of its own."""
        keep_compiled_programs()
        key, trainable = entropy.key("initialisation"), self.flow.trainable_prior
        model = fresh_model(plan, prepared, encoding, key, trainable_prior=trainable)
        if plan.steps == 0 or (checkpoints is not None and checkpoints.has_state):
            return model
        start = self._initialisation(*rows.shape).start(model.flow, rows, entropy=entropy)
        return Defended(start, model.background)

    def describe(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The plan, the normaliser or prior, and the flow's parameters."""
        flow = self.flow
        common, arrays = describe_density(flow.density_)
        header = {"plan": flow.plan_.to_dict(), "trainable_prior": flow.trainable_prior}
        parameters = parameter_arrays(flow.density_.model)
        return common | header, arrays | flow.prepared_.arrays() | parameters

    def rebuild(
        self, header: dict[str, Any], arrays: dict[str, np.ndarray], schema: Schema
    ) -> None:
        """Build the flow that the plan names, and fill it."""
        flow, plan, encoding = self.flow, self.flow.plan_, Encoding(schema)
        if plan.steps > 0:
            require_room(plan.architecture, len(encoding.low), arrays)
        prepared, trainable = Prepared.from_arrays(arrays), bool(header["trainable_prior"])
        key = np.zeros(2, np.uint32)
        template = fresh_model(plan, prepared, encoding, key, trainable_prior=trainable)
        model = with_parameters(template, arrays)
        flow.density_ = read_density(header, prepared.normaliser, model, encoding)
        flow.encoding_, flow.prepared_ = encoding, prepared
        flow.architecture, flow.trainable_prior = plan.architecture, trainable

    def _preparation(self, rows: int, columns: int) -> Preparation:
        budget = self.flow._budget()
        return self._beginning().preparation(
            budget,
            rows=rows,
            columns=columns,
            accountant=self.flow.accountant,
            before=self.flow._declarations().events(budget, columns),
        )

    def _beginning(self) -> Beginning:
        flow = self.flow
        prior = None if flow.prior == "auto" and self._is_fixed() else flow.prior
        return Beginning(
            prior,
            flow.prior_share,
            flow.prior_is_public,
            flow.normalisation,
            is_natural=name_of(self._optimizer()) == NaturalGradient.name,
        )

    def _is_fixed(self) -> bool:
        """Whether the caller chose how the flow is trained."""
        flow = self.flow
        fixed = (flow.architecture, flow.steps, flow.noise_multiplier)
        return fixed != (None, None, None) or flow.initialisation != "identity"

    def _optimizer(self) -> str | Descent:
        flow = self.flow
        check_choice("optimizer", name_of(flow.optimizer), ("auto", *OPTIMIZERS))
        if flow.optimizer != "auto":
            return flow.optimizer
        is_free = not self._is_fixed() and (flow.learning_rate, flow.averaging) == (None, None)
        return NaturalGradient.name if is_free and flow._budget().is_private else "adam"

    def _initialisation(self, rows: int, columns: int) -> Initialisation:
        budget = self.flow._budget()
        rule = rule_for(name_of(self._optimizer()))(budget, rows=rows, columns=columns)
        layers = (self._architecture() or rule.architecture).act_norms
        return plan_initialisation(self.flow.initialisation, budget, layers=layers, columns=columns)

    @property
    def stamps(self) -> tuple[str, ...]:
        """What an unpaid start or prior marks a fit with."""
        formula = (PAPER_STAMP,) if self.flow.initialisation == PAPER_FORMULA else ()
        return (*formula, *self._beginning().stamps)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is taken on trust about a given prior."""
        return self._beginning().caveats

    def _architecture(self) -> Architecture | None:
        chosen = self.flow.architecture
        if chosen is None or isinstance(chosen, Architecture):
            return chosen
        if not isinstance(chosen, str):
            raise InputError("architecture must be a name, an Architecture or None")
        return Architecture(chosen)
