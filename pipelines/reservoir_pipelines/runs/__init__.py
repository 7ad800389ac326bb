"""What ``train`` is made of: a run and its folder, the rows of a step, the loop, checkpoints, and runs read back."""
