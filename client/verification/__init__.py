"""Looking at everything a cluster stores, and saying what is not as it should be."""
