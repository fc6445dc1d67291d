"""Estimators with the scikit-learn interface: from a budget and rows to a released density."""
