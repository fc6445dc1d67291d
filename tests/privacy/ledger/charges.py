"""Small charges and caps that the tests of the ledger share."""

from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget

DELTA = 1e-6


def query(epsilon: float = 0.01, *, count: int = 1, purpose: str = "") -> PureEvent:
    return PureEvent(epsilon=Sensitivity.uniformly(epsilon), count=count, purpose=purpose)


def cap_for(count: int, *, accountant: str = "zcdp") -> Budget:
    """A cap with room for exactly ``count`` queries."""
    return Budget(epsilon_of([query(count=count)], delta=DELTA, accountant=accountant), DELTA)


def store_of(place: str) -> str:
    return "postgresql" if "://" in place else "sqlite"
