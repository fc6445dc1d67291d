"""Named data sets, and the experiments that use them."""
