"""The public constants of the local fit, chosen once by measurement and never from the rows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the local fit behaves; the defaults are the ones to use, the rest serves ablations.

    Attributes:
        background: The fixed weight of the uniform density on the cube.
        early_background: Its weight while components still grow; nearly none, so that rows
            far from all components keep pulling the nearest instead of being written off.
        clip_offset: Rows are cut to sqrt(columns) plus this many deviations of a component.
        count_share: The part of the statistic's square norm that goes to the counts,
            relative to the part of the moments.
        gains: Whether noisy moments are damped by what is known of their noise.
        splitting: Whether components grow by splitting instead of starting at random.
        scouting: Whether a wide component looks for rows far from all others.
        scout_weight: The weight it starts with.
        scout_keep: It is kept if it found so many times the smallest count above the noise.
        zoom_steps: How many releases find the first Gaussian.
        zoom_first: The part of each but the last of them, where there is one component.
        zoom_share: The least part of the budget they get, in squared mu.
        level_steps: Releases after each doubling of the number of components.
        last_steps: Releases with the final number of components.
        noise_per_component: A component must be worth this many noise deviations per number.
        rows_per_component: A component must have this many rows per number.
        most_per_column: More components per column are not worth their time.
        weight_variance: The variance of a component's relative weight before it was seen.
        mean_variance: The variance of its mean in its own frame.
        shape_variance: The variance of its covariance in its own frame.
        drift: What each variance gains between releases, because the target moves.
        split_at: Where the halves of a component are put, in its deviations.
        split_left: The part of the variance along the split that each half keeps.
        floor: The smallest deviation of a component relative to that of all rows.

    Example:
        >>> Recipe(gains=False).background
        0.01
    """

    background: float = 0.01
    early_background: float = 1e-9
    clip_offset: float = 0.1
    count_share: float = 0.05
    gains: bool = True
    splitting: bool = True
    scouting: bool = True
    scout_weight: float = 0.01
    scout_keep: float = 2.0
    zoom_steps: int = 4
    zoom_first: float = 0.1
    zoom_share: float = 0.04
    level_steps: int = 3
    last_steps: int = 10
    noise_per_component: float = 1.7
    rows_per_component: float = 2.0
    most_per_column: int = 24
    weight_variance: float = 0.3
    mean_variance: float = 0.3
    shape_variance: float = 0.06
    drift: float = 0.005
    split_at: float = 0.8
    split_left: float = 0.36
    floor: float = 1e-3


DEFAULT = Recipe()
