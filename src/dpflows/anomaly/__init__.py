"""Anomaly detectors: a threshold on a private density, or a private vote of many."""
