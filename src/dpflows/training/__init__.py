"""Where rows meet parameters: batches, clipping, noise, the loop."""
