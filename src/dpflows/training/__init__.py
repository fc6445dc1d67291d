"""Training on private rows: batches, clipping, noise, DP-SGD, natural gradients and DP-EM."""
