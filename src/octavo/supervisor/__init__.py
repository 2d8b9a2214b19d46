"""The one-command cluster: metadata, bookies and brokers as child processes under one data folder.

`Supervisor` runs them, `ClusterSpec` says what to run, `read_cluster_file` is how other tools find
them. Callers: the commands `octavo up`, `status` and `down`, and `octavo.testing`. It knows the
roles only by their command line, never by their modules.
"""

from __future__ import annotations
