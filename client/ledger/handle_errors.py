"""What callers of a writing handle are told when it stops (W-6)."""

from __future__ import annotations

from octavo.client.ledger.quorum_actions import Stopped, StopReason
from octavo.runtime.errors import (
    Fenced,
    LedgerClosed,
    LedgerConflict,
    NotEnoughReplicas,
    OctavoError,
    RequestTimedOut,
    UnknownOutcome,
)
from octavo.runtime.ids import EntryId, LedgerId

_CLASS_OF: dict[StopReason, type[OctavoError]] = {
    StopReason.FENCED: Fenced,
    StopReason.CONFLICT: LedgerConflict,
    StopReason.NOT_ENOUGH_BOOKIES: NotEnoughReplicas,
    StopReason.ADD_QUORUM_TIMEOUT: RequestTimedOut,
    StopReason.REJECTED: LedgerClosed,
    StopReason.ABANDONED: LedgerClosed,
}


def stop_error(ledger_id: LedgerId, stopped: Stopped) -> OctavoError:
    """Why the handle stopped, as an exception."""
    cls = _CLASS_OF[stopped.reason]
    return cls(f"ledger {ledger_id}: {stopped.cause}", ledger_id=ledger_id)


def refusal(ledger_id: LedgerId, stopped: Stopped | None) -> OctavoError:
    """Why an add is refused; nothing was sent. Fenced and LedgerConflict keep their class."""
    if stopped is None:
        return LedgerClosed(f"ledger {ledger_id} is being closed", ledger_id=ledger_id)
    error = stop_error(ledger_id, stopped)
    if isinstance(error, Fenced | LedgerConflict):
        return error
    return LedgerClosed(error.cause, ledger_id=ledger_id, reason=error.code)


def unknown_outcome(ledger_id: LedgerId, entry: EntryId, cause: OctavoError) -> UnknownOutcome:
    """The fate of a pending entry is open until the ledger is CLOSED (W-6)."""
    return UnknownOutcome(
        f"entry {entry} of ledger {ledger_id} may or may not be stored: {cause.cause}",
        ledger_id=ledger_id,
        entry_id=entry,
        reason=cause.code,
    )
