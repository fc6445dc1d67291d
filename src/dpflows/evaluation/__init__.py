"""Evaluation with real rows: metrics, reports and audits; INTERNAL unless charged."""
