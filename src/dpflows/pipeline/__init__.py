"""Stages that make releases from private rows, and the plans that are composed of them."""
