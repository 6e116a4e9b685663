"""Hand the metrics of runs to experiment trackers."""
