# The part of toxiproxy-python (0.1.1, untyped) that Octavo uses.
