"""What is done with saved runs: evaluating, filming, plotting."""
