"""How busy brokers are, and which bundles move because of it (ledger §8.4 O-4, ADR 40).

`meter` turns counters into a load, `board` says which reports can be trusted, `core` decides; all
three are pure. `reporter` publishes and reads reports, `shedder` has decisions noted. Knows bundles
and brokers, nothing of clients."""
