"""From PTX to a program: each instruction as a function over sets of lanes."""
