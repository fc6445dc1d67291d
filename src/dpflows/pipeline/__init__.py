"""Stages that release something from private rows, and plans that are made of them."""
