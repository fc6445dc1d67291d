"""Baselines: methods of others for comparison; a new one is one file and one line."""

from dpflows.experiments.baselines.base import Peer, TooSlow
from dpflows.experiments.baselines.graphical import AIM, MST
from dpflows.experiments.baselines.smartnoise import SmartNoiseAIM, SmartNoiseMST

PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (MST, AIM, SmartNoiseMST, SmartNoiseAIM)
}

__all__ = ["PEERS", "Peer", "TooSlow"]
