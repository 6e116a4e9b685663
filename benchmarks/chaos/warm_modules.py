"""What `warm` loads before it forks: all that a run loads."""

import matplotlib.figure  # noqa: F401

import accel_rl.cli.run
import accel_rl.cli.tools
import accel_rl.ga3c.run
import accel_rl.runs.tables
import accel_rl.training.train  # noqa: F401
