"""The asynchronous units: TMA, tensor cores, mbarriers; and the arithmetic that they do."""
