"""Batches of other libraries, as `accel_rl.envs.Simulators`; each module needs its own package."""
