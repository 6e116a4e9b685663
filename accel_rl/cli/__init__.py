"""The command line: options, help, starting learners, and what the commands print."""
