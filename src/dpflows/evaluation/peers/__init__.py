"""Methods of others that ours are compared with; a new one is one file and one line."""

from dpflows.evaluation.peers.aim import AIM
from dpflows.evaluation.peers.base import Peer, TooSlow
from dpflows.evaluation.peers.mst import MST
from dpflows.evaluation.peers.smartnoise import SmartNoiseAIM, SmartNoiseMST

PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (MST, AIM, SmartNoiseMST, SmartNoiseAIM)
}

__all__ = ["PEERS", "Peer", "TooSlow"]
