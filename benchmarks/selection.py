"""What one fit may cost inside a private selection: a table by law and mean number of fits.

Run with ``python benchmarks/selection.py``; it reads no data and takes seconds.
"""

from dpflows.estimators.select import LAWS
from dpflows.privacy.accounting import calibrate_noise, epsilon_of
from dpflows.privacy.events import GaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import selection_event

DELTA = 1e-6
UNIT = Sensitivity.of_sum(1.0)


def fit(noise):
    return GaussianEvent(noise=noise, sensitivity=UNIT)


def share(total, mean, shape):
    """The epsilon of one Gaussian fit inside a selection that costs ``total``."""
    noise = calibrate_noise(
        Budget(total, DELTA),
        lambda level: [selection_event((fit(level),), mean=mean, shape=shape)],
        accountant="rdp",
    )
    return epsilon_of([fit(noise)], delta=DELTA)


def main():
    print(f"| total epsilon | fits on average | {' | '.join(LAWS)} |")
    print("| --- | --- |" + " --- |" * len(LAWS))
    for total in (0.5, 1.0, 4.0):
        for mean in (3, 10, 30):
            cells = [f"{share(total, mean, shape):.2f}" for shape in LAWS.values()]
            print(f"| {total:g} | {mean} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
