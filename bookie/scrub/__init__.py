"""The scrub: segments are read before anybody asks for them, and damage is repaired from copies."""
