"""A run on disk: its directory, files, checkpoints and options."""
