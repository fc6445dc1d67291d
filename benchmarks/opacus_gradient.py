"""Seconds per clipped gradient of the benchmark MAF under Opacus. Runs in its own environment.

Opacus refuses zuko's masked layers, so a sampler for them is registered here by hand.
"""

import statistics
import sys
import time
import warnings

import torch
import zuko
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from zuko.nn import MaskedLinear

DIM, WIDTH, BLOCKS, CLIP = 10, 100, 5, 1.0


@register_grad_sampler(MaskedLinear)
def _masked_linear(layer, activations, backprops):
    weight = torch.einsum("no,ni->noi", backprops, activations[0]) * layer.mask
    return {layer.weight: weight, layer.bias: backprops}


def clipped_gradient(model, rows):
    model.zero_grad(set_to_none=True)
    (-model().log_prob(rows)).sum().backward()
    samples = [p.grad_sample for p in model.parameters() if p.requires_grad]
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
    factor = (CLIP / norms.clamp(min=CLIP)).to(rows.dtype)
    return [torch.einsum("n,n...->...", factor, s) for s in samples]


def main(batch, rounds):
    warnings.simplefilter("ignore")
    flow = zuko.flows.MAF(DIM, transforms=BLOCKS, hidden_features=(WIDTH, WIDTH))
    model = GradSampleModule(flow, strict=False, loss_reduction="sum")
    rows = torch.randn(batch, DIM)
    times = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        clipped_gradient(model, rows)
        times.append(time.perf_counter() - start)
    print(statistics.median(times[2:]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
