"""Anomaly detectors: a threshold on a private density, or private votes of an ensemble."""
