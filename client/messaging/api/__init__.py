"""The async classes, which are the implementation of the public API, and what they share.

`sync` stands on them; they stand on `producing`, `reading` and `cluster`."""
