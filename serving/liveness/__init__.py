"""Who still is who the cluster takes it for, and who must be replaced (ledger §8.4, ADR 34).

Knows what is registered in `metadata`, and the protocol between brokers; nothing of partitions."""
