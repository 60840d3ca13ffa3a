"""One run, all schedules: what a run's synchronization says of every interleaving.

`record` keeps what a run did at barriers, as a `skeleton`; `causality` says what of it came before
what, in every interleaving with the same matching of arrivals and phases; `matching` asks whether
that matching is the only one, and `timing` whether a value depends on time. Where a doubt is left,
`guide` runs the kernel again so that the doubt comes true, or does no harm; where a value depends
on the order of atomic operations or flags, `orders` runs every one. `decide` puts it together;
`explain` says what waits are good for. docs/guide/schedules.md says what the answers mean.
"""
