"""What happened to the private rows, in words an accountant can price.

An event states the noise that was added and how far one person can move the
released value under each neighbour relation. It holds no private value, so a list
of events may be published. Accountants interpret events; events know no accountant.
"""

from dpflows.privacy.events.additive import DiscreteLaplaceEvent, GaussianEvent, LaplaceEvent
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.checks import check_at_least, check_choice, check_positive
from dpflows.privacy.events.promised import (
    ApproximateEvent,
    BoundedRangeEvent,
    PureEvent,
    ZCDPEvent,
)
from dpflows.privacy.events.reading import event_from_dict
from dpflows.privacy.events.relations import NEIGHBOURS, Neighbours, Sensitivity
from dpflows.privacy.events.sampled import SAMPLINGS, SampledGaussianEvent, Sampling, check_sampling
from dpflows.privacy.events.selection import SelectionEvent
from dpflows.privacy.events.votes import VOTE_LAWS, VoteEvent, VoteLaw

__all__ = [
    "ApproximateEvent",
    "BoundedRangeEvent",
    "DiscreteLaplaceEvent",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "NEIGHBOURS",
    "Neighbours",
    "PureEvent",
    "SAMPLINGS",
    "SampledGaussianEvent",
    "Sampling",
    "SelectionEvent",
    "Sensitivity",
    "VOTE_LAWS",
    "VoteEvent",
    "VoteLaw",
    "ZCDPEvent",
    "check_at_least",
    "check_choice",
    "check_positive",
    "check_sampling",
    "event_from_dict",
]
