"""Thirteen privacy bugs that others have made, as changes of today's source.

Each change names a text that must stand exactly once in its file, so that a change that
no longer fits the source fails loudly, and the ordinary tests that must notice it. A bug
that can be made in several places has several changes, told apart after a colon.
"""

from dataclasses import dataclass
from pathlib import Path

STEP = "tests/training/test_private_step.py"
NATURAL = "tests/training/test_natural_gradient.py"
CHECKS = "tests/training/test_progress_checks.py"
NATURAL_FAMILIES = "tests/contracts/test_natural_gradient.py"
CHARGE = "payment = charge(ledger, events, stamps=plan.stamps, journal=journal)"
LEARN = "self._run(plan, Work(table, entropy, journal, callbacks))"


@dataclass(frozen=True)
class Bug:
    """A change of one file of the package, and the tests that must fail with it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    is_cheap: bool = False

    def plant(self, package: Path) -> None:
        """Change the copy of the package in this folder."""
        path = package / self.file
        source = path.read_text()
        if source.count(self.old) != 1:
            raise LookupError(f"{self.file} does not hold this exactly once: {self.old!r}")
        path.write_text(source.replace(self.old, self.new))


BUGS: dict[str, Bug] = {
    "no clip": Bug(
        "training/ghost_clipping.py",
        "        return bound / jnp.maximum(norms, bound)\n",
        "        return jnp.where(jnp.isfinite(norms), 1.0, 0.0)\n",
        ("tests/training/test_clipping.py::test_factor_never_lets_a_gradient_past_the_norm",),
    ),
    "mean for sum": Bug(
        # the mean of the batch is clipped, not each row
        "training/ghost_clipping.py",
        "    alive = present & jnp.isfinite(squares)\n",
        "    alive = present & jnp.isfinite(squares)\n"
        "    mean = jnp.sum(jnp.where(alive, squares, 0.0)) / jnp.maximum(jnp.sum(alive), 1)\n"
        "    squares = jnp.where(alive, mean, squares)\n",
        (f"{STEP}::test_a_row_among_others_moves_the_sum_by_at_most_the_clip",),
    ),
    "noise over the batch size twice": Bug(
        "training/dp_sgd.py",
        "        return self.noise_multiplier * self.clipper.sensitivity\n",
        "        return self.noise_multiplier * self.clipper.sensitivity / self.batch_size\n",
        (f"{STEP}::test_the_noise_of_a_step_is_what_the_plan_says_over_the_batch_size",),
    ),
    "no clip: whitened": Bug(
        "training/natural_gradient.py",
        "        factor = jnp.where(alive, bound / jnp.maximum(jnp.sqrt(squares), bound), 0.0)\n",
        "        factor = jnp.where(alive, 1.0, 0.0)\n",
        (f"{NATURAL_FAMILIES}::test_no_hostile_row_exceeds_the_clip[columnwise]",),
    ),
    "noise over the batch size twice: whitened": Bug(
        "training/natural_gradient.py",
        "        scale = self.noise_multiplier * clip\n",
        "        scale = self.noise_multiplier * clip / self.batches.batch_size\n",
        (f"{NATURAL}::test_noise_of_a_step_is_what_the_plan_says",),
    ),
    "key reuse: whitened": Bug(
        "training/natural_gradient.py",
        "noise.add(sums, scale=scale, step=step)",
        "noise.add(sums, scale=scale, step=0)",
        (f"{NATURAL}::test_no_noise_of_a_run_is_used_twice",),
    ),
    "no clip: progress checks": Bug(
        "training/progress_checks.py",
        "neginf=-CLIP), -CLIP, CLIP)\n",
        "neginf=-CLIP), -1e6, 1e6)\n",
        (f"{CHECKS}::test_no_hostile_row_moves_a_check_by_more_than_its_bound",),
    ),
    "noise over the batch size twice: progress checks": Bug(
        "training/progress_checks.py",
        "scale=self.noise_multiplier * self.bound, step=step)",
        "scale=self.deviation, step=step)",
        (f"{CHECKS}::test_noise_of_a_check_is_what_its_event_says",),
    ),
    "key reuse: progress checks": Bug(
        "training/natural_gradient.py",
        "            step=self.steps + checks.done_by(step, steps=self.steps),\n",
        "            step=checks.done_by(step, steps=self.steps),\n",
        (f"{NATURAL}::test_no_two_releases_of_a_run_have_the_same_number",),
    ),
    "one step too many": Bug(
        "training/dp_sgd.py",
        "        while (step := int(state.step)) < self.steps:\n",
        "        while (step := int(state.step)) <= self.steps:\n",
        (f"{NATURAL}::test_a_run_releases_what_its_events_pay_for",),
    ),
    "shuffle for Poisson": Bug(
        "training/dp_sgd.py",
        "            batch = loop.batch(rows, sizes[i], keys[i])\n",
        "            slots = jnp.arange(loop.batches.slots)\n"
        "            turn = state.step * loop.batches.batch_size + slots\n"
        "            batch = rows[turn % loop.batches.rows], slots < loop.batches.batch_size\n",
        (f"{STEP}::test_rows_join_the_steps_of_a_run_by_chance",),
    ),
    "key reuse": Bug(
        "training/dp_sgd.py",
        "    for i in range(count):\n        keys[i] = entropy.key(stream, step=step + i)\n",
        "    keys[:count] = entropy.key(stream, step=step)\n",
        (f"{STEP}::test_no_key_is_used_twice_in_a_run",),
    ),
    "key reuse: noise of the chunk before": Bug(
        "training/dp_sgd.py",
        "self._thread.submit(self._draw, step=step + CHUNK)",
        "self._thread.submit(self._draw, step=step)",
        (f"{STEP}::test_no_noise_of_a_run_is_used_twice",),
    ),
    "key reuse: noise of the step before": Bug(
        "training/dp_sgd.py",
        "noise.normals(len(self.trained), step=step + i)",
        "noise.normals(len(self.trained), step=step)",
        (f"{STEP}::test_no_noise_of_a_run_is_used_twice",),
    ),
    "key reuse: nonces": Bug(
        "privacy/randomness.py",
        "        nonce = bytes(4) + step.to_bytes(6",
        "        nonce = bytes(4) + (0).to_bytes(6",
        (f"{STEP}::test_no_noise_of_a_run_is_used_twice",),
    ),
    "divisor from the drawn batch": Bug(
        "training/dp_sgd.py",
        "            return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])\n",
        "            drawn = jnp.maximum(jnp.sum(present), 1) / self.batch_size\n"
        "            return jnp.concatenate([leaf.reshape(-1) for leaf in leaves]) / drawn\n",
        (f"{STEP}::test_a_sum_grows_with_the_rows_that_were_drawn",),
    ),
    "NaN rows skipped": Bug(
        "table/reading.py",
        "    outside = sum(",
        "    from dpflows.table.sources import is_missing\n"
        "    gaps = np.any([is_missing(values) for values in columns.values()], axis=0)\n"
        "    columns = {name: values[~gaps] for name, values in columns.items()}\n"
        "    outside = sum(",
        ("tests/contracts/test_rows.py::test_one_row_changes_nothing_else",),
    ),
    "category inference": Bug(
        "table/proposals.py",
        "    if read_values:\n",
        "    columns = tuple(\n"
        "        _with_values(cells, column, text) if column.kind == 'categorical' else column\n"
        "        for cells, column in zip(source.cells, columns, strict=True)\n"
        "    )\n"
        "    if read_values:\n",
        (
            "tests/table/test_proposing.py::"
            "test_another_table_of_the_same_types_gives_the_same_schema",
        ),
        is_cheap=True,
    ),
    "wrong q": Bug(
        "privacy/accounting/pld.py",
        "    rate, mu, reach = event.rate, 1 / event.noise_multiplier",
        "    rate, mu, reach = event.rate / 2, 1 / event.noise_multiplier",
        ("tests/contracts/test_accountants.py::test_sampled_bounds_are_above_simulation",),
        is_cheap=True,
    ),
    "sparse vector without threshold noise": Bug(
        "privacy/mechanisms/selection.py",
        "self._threshold = self._noisy(threshold, self._scales[0])",
        "self._threshold = _held(round(threshold / self._unit))",
        ("tests/privacy/mechanisms/test_sparse_variants.py::test_our_class_passes",),
    ),
    "charge after release: a fit": Bug(
        "estimators/base.py",
        f"            {CHARGE}\n",
        f"            {LEARN}\n            {CHARGE}\n",
        (
            "tests/contracts/test_charging.py::"
            "test_the_charge_is_there_before_the_rows_are_used[DPGaussian]",
        ),
    ),
    "charge after release: a file": Bug(
        "privacy/ledger/ledger.py",
        "        marked = ledger.release(receipt, artefact=artefact)\n"
        "    _reveal(pending, target, overwrite)\n",
        "        _reveal(pending, target, overwrite)\n"
        "        marked = ledger.release(receipt, artefact=artefact)\n",
        ("tests/privacy/ledger/test_faults.py::test_a_full_disk_while_a_file_is_published",),
    ),
    "charge after release: an answer": Bug(
        "anomaly/voting.py",
        "        numbers = iter(range(first := queries.charge(count), first + count))\n"
        "        yield lambda votes: self._answer(votes, next(numbers), entropy)\n",
        "        queries.require(count)\n"
        "        numbers = iter(range(first := queries.taken(), first + count))\n"
        "        yield lambda votes: self._answer(votes, next(numbers), entropy)\n"
        "        queries.charge(count)\n",
        ("tests/anomaly/test_ensemble.py::test_a_kill_between_charge_and_answer_costs_the_charge",),
    ),
    "unseeded fork": Bug(
        # a generator that is filled once goes on alike in both processes
        "privacy/randomness.py",
        "        return os.urandom(count)\n",
        "        return _POOL.bytes(count)\n\n\n_POOL = np.random.default_rng()\n",
        ("tests/privacy/test_randomness.py::test_a_forked_process_draws_other_bits",),
    ),
}
