"""What runs experiments: runs, records, checkpoints, and several processes."""
