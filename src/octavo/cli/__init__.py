"""The `octavo` command, one module per group of commands.

House rules (spec interface §2): noun, then verb; `-o table|json|yaml|csv`; exit codes 0 ok, 1
error, 2 usage, 3 not found, 4 denied, 5 unavailable, 6 timeout; progress on stderr only; a closed
pipe is quiet; destructive verbs need `--yes` and nothing prompts without a terminal.

Start-up must stay fast, so the modules here import only the standard library, typer and each other;
the SDK, the servers and Arrow are imported inside the command that needs them.
"""

from __future__ import annotations
