"""Training samples: NPZ files that load with pickling off."""
