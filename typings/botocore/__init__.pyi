# The part of botocore that Octavo uses.
