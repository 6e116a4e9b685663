"""GA3C: agents that never wait for each other, predictors and trainers."""
