"""A small flow with masked, stacked and free parameters for the engine's tests."""

import equinox as eqx
import jax
import paramax
import pytest
from flowjax.distributions import StandardNormal
from flowjax.flows import masked_autoregressive_flow

from dpflows.training.ghost_clipping import take_apart


def log_loss(model, row):
    return -model.log_prob(row)


def small_flow(dim=3, width=8, layers=2, seed=0):
    return masked_autoregressive_flow(
        jax.random.key(seed),
        base_dist=paramax.non_trainable(StandardNormal((dim,))),
        flow_layers=layers,
        nn_width=width,
        nn_depth=2,
    )


class ScaledFlow(eqx.Module):
    """A flow with a free parameter beside its dense layers."""

    flow: eqx.Module
    log_scale: jax.Array

    def log_prob(self, row):
        return self.flow.log_prob(row * jax.numpy.exp(self.log_scale)) + self.log_scale.sum()


@pytest.fixture
def loss():
    return log_loss


@pytest.fixture(scope="session")
def taken_apart():
    return take_apart(ScaledFlow(small_flow(), jax.numpy.zeros(3)))
