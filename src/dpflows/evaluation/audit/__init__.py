"""Attacks on our own training: lower bounds on epsilon to hold against the claim."""

from dpflows.evaluation.audit.bounds import lower_bound, p_value
from dpflows.evaluation.audit.findings import Finding
from dpflows.evaluation.audit.gradients import audit_gradients
from dpflows.evaluation.audit.rows import audit_rows, made_up_table
from dpflows.evaluation.audit.step import audit_step

__all__ = [
    "Finding",
    "audit_gradients",
    "audit_rows",
    "audit_step",
    "lower_bound",
    "made_up_table",
    "p_value",
]
