"""The errors a caller is meant to handle.

Messages say what was expected, what came and what to do. They never contain a
value read from private rows.
"""


class InputError(ValueError):
    """What the caller passed cannot be used; the command line exits with code 2."""


class BudgetError(RuntimeError):
    """The privacy budget does not allow what was asked; nothing was released."""


class TrainingError(RuntimeError):
    """Training failed in a way that only settings can mend; nothing was released."""


class PrivacyWarning(UserWarning):
    """What was asked for is allowed, and costs people more privacy than it seems to."""


class RepeatedFitWarning(PrivacyWarning):
    """The same rows are fitted again without a ledger; the costs add up."""


class UnpaidTransformerWarning(PrivacyWarning):
    """A step before the estimator learned from the rows, and nothing paid for it."""
