"""Baselines: methods of others for comparison; a new one is one file and one line."""

from dpflows.experiments.baselines.base import Baseline, TooSlow
from dpflows.experiments.baselines.graphical import AIM, MST
from dpflows.experiments.baselines.smartnoise import SmartNoiseAIM, SmartNoiseMST

BASELINES: dict[str, type[Baseline]] = {
    baseline.name: baseline for baseline in (MST, AIM, SmartNoiseMST, SmartNoiseAIM)
}

__all__ = ["BASELINES", "Peer", "TooSlow"]
