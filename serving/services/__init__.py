"""The gRPC service of a broker: one class for each subject, and what they share."""
