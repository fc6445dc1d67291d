"""Seconds per clipped gradient of the benchmark MAF under Opacus. Called by ``peers.py``.

Opacus refuses zuko's masked layers, so a sampler for them is registered here by hand. It is
compared with one gradient per row, by torch alone, before anything is measured.
"""

import sys
import warnings

import torch
import zuko
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from turns import serve
from zuko.nn import MaskedLinear

DIM, WIDTH, BLOCKS, CLIP = 10, 100, 5, 1.0
AGREEMENT, COMPARED = 1e-4, 32


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


def row_by_row(flow, rows):
    """The same sum from one ordinary gradient per row."""
    weights = [p for p in flow.parameters() if p.requires_grad]
    total = [torch.zeros_like(weight) for weight in weights]
    for row in rows:
        gradients = torch.autograd.grad(-flow().log_prob(row), weights)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for so_far, gradient in zip(total, gradients, strict=True):
            so_far += gradient * (CLIP / norm.clamp(min=CLIP))
    return total


def difference(theirs, ours):
    """The largest difference of two gradients, over the largest entry."""
    gap = max((a - b).abs().max() for a, b in zip(theirs, ours, strict=True))
    return float(gap / max(b.abs().max() for b in ours))


def main(batch):
    warnings.simplefilter("ignore")
    flow = zuko.flows.MAF(DIM, transforms=BLOCKS, hidden_features=(WIDTH, WIDTH))
    rows = torch.randn(batch, DIM)
    expected = row_by_row(flow, rows[:COMPARED])
    model = GradSampleModule(flow, strict=False, loss_reduction="sum")
    gap = difference(clipped_gradient(model, rows[:COMPARED]), expected)
    if not gap < AGREEMENT:
        raise SystemExit(f"Opacus and one gradient per row differ by {gap:.1e}")
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    facts = {"parameters": count, "gradients": 1, "difference": gap}
    serve(lambda: clipped_gradient(model, rows), facts)


if __name__ == "__main__":
    main(int(sys.argv[1]))
