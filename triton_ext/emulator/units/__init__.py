"""The asynchronous units: TMA, tensor cores, barriers; and the arithmetic that they do."""
