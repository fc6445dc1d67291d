"""Mixtures of Gaussians fitted privately: in local frames, and by the DP-EM of the literature."""
