"""The judge of `make groups-soak` finds each broken promise, and excuses only what is excused."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest

from tools.groups_soak.checker import Verdict, judge
from tools.groups_soak.pauses import left_of_s
from tools.groups_soak.story import (
    ASSIGNED,
    BROKEN,
    COMMITTED,
    ENDED,
    FROZEN,
    HANDED,
    KILLED,
    LOST,
    OBSERVED,
    REVOKED,
    SEEN,
    STALLED,
    TARGETED,
    Event,
    Limits,
    Span,
    as_line,
    parse,
    read,
)

LIMITS = Limits(session_timeout_s=6.0, own_limit_s=4.0)
END_S = 30.0


def assigned(at_s: float, who: str, *slots: int) -> Event:
    return Event(ASSIGNED, at_s, who, dict.fromkeys(slots, 0))


def revoked(at_s: float, who: str, *slots: int, what: str = REVOKED) -> Event:
    return Event(what, at_s, who, dict.fromkeys(slots, 0))


def handed(at_s: float, who: str, slot: int, first: int, after: int) -> Event:
    return Event(HANDED, at_s, who, {slot: first}, {slot: after})


def committed(since_s: float, at_s: float, who: str, slot: int, offset: int) -> Event:
    return Event(COMMITTED, at_s, who, {}, {slot: offset}, since_s)


def told(events: Sequence[Event], end: int = 10, slots: int = 1) -> Verdict:
    return judge(events, dict.fromkeys(range(slots), end), LIMITS, Span(0.0, END_S))


GOOD = [
    assigned(0.0, "a", 0),
    handed(1.0, "a", 0, 0, 6),
    committed(1.1, 1.2, "a", 0, 6),
    revoked(5.0, "a", 0),
    assigned(5.2, "b", 0),
    handed(5.3, "b", 0, 6, 10),
    committed(5.4, 5.5, "b", 0, 10),
]


def test_a_good_run_has_nothing_wrong() -> None:
    found = told(GOOD)
    assert found.wrong == ()
    assert (found.overlaps, found.lost, found.repeated, found.commits_back) == (0, 0, 0, 0)
    assert found.longest_unowned_ms == 200


def test_two_owners_at_a_time_are_found() -> None:
    found = told([*GOOD[:3], assigned(4.0, "b", 0), *GOOD[3:4], *GOOD[5:]])
    assert found.overlaps == 1
    assert "partition 0 was a's" in found.wrong[0]
    late = told([*GOOD[:3], *GOOD[4:]])  # a never gave it up
    assert late.overlaps == 1
    third = told([*GOOD, assigned(6.0, "c", 0), revoked(7.0, "c", 0)])
    assert third.overlaps == 1


@pytest.mark.parametrize(
    ("since_s", "until_s", "other_s", "overlaps"),
    [
        (3.0, 12.0, 9.0, 0),  # frozen beyond its limit, and the other came after that
        (3.0, 12.0, 6.9, 1),  # the other came before the limit had passed
        (3.0, 6.5, 6.0, 1),  # not frozen beyond its limit
    ],
)
def test_only_who_was_frozen_beyond_its_limit_is_excused(
    since_s: float, until_s: float, other_s: float, overlaps: int
) -> None:
    """GP-5, RB12."""
    found = told(
        [
            assigned(0.0, "a", 0),
            handed(1.0, "a", 0, 0, 5),
            Event(FROZEN, until_s, "a", since_s=since_s),
            assigned(other_s, "b", 0),
            revoked(until_s + 0.5, "a", 0, what=LOST),
            handed(until_s + 1, "b", 0, 5, 10),
        ]
    )
    assert found.overlaps == overlaps


def test_a_thawed_member_that_goes_on_is_no_excuse_for_a_third() -> None:
    found = told(
        [
            assigned(0.0, "a", 0),
            Event(FROZEN, 12.0, "a", since_s=3.0),
            assigned(9.0, "b", 0),
            assigned(10.0, "c", 0),
            handed(11.0, "b", 0, 0, 10),
            revoked(12.5, "a", 0, what=LOST),
        ]
    )
    assert found.overlaps == 1
    assert "was b's" in found.wrong[0]


def test_a_partition_without_owner_for_too_long_is_found() -> None:
    found = told(
        [*GOOD[:3], Event(KILLED, 5.0, "a"), assigned(16.5, "b", 0), GOOD[5]._replace(at_s=17)]
    )
    assert found.longest_unowned_ms == 11_500
    assert "no owner for 11.5 s" in found.wrong[0]
    within = told(
        [*GOOD[:3], Event(KILLED, 5.0, "a"), assigned(15.5, "b", 0), GOOD[5]._replace(at_s=17)]
    )
    assert within.wrong == ()


def test_a_coordinator_that_takes_over_gives_one_more_session() -> None:
    """RB8."""
    story = [*GOOD[:3], Event(KILLED, 5.0, "a"), assigned(21.5, "b", 0)]
    moved = told([*story, GOOD[5]._replace(at_s=22), Event(BROKEN, 14.0, since_s=8.0)])
    assert (moved.wrong, moved.longest_unowned_ms) == ((), 16_500)
    elsewhere = told([*story, GOOD[5]._replace(at_s=22), Event(BROKEN, 29.0, since_s=25.0)])
    assert "no owner for 16.5 s" in elsewhere.wrong[0]
    longer = [*GOOD[:3], Event(KILLED, 5.0, "a"), assigned(22.5, "b", 0)]
    late = told([*longer, GOOD[5]._replace(at_s=23), Event(BROKEN, 14.0, since_s=8.0)])
    assert "no owner for 17.5 s" in late.wrong[0]


def test_each_dead_member_that_it_was_meant_for_costs_a_session() -> None:
    """RB5: the coordinator learns of a death when the session ends."""
    story = [*GOOD[:3], Event(KILLED, 5.0, "a"), assigned(21.5, "c", 0)]
    story.append(handed(22.0, "c", 0, 6, 10))
    meant_for_b = Event(TARGETED, 12.0, "b", {0: 0})
    frozen = Event(FROZEN, 25.0, "b", since_s=10.5)
    chain = told([*story, Event(TARGETED, 6.0, "a", {0: 0}), meant_for_b, frozen])
    assert (chain.wrong, chain.longest_unowned_ms) == ((), 16_500)
    for less in (
        [Event(TARGETED, 6.0, "a", {0: 0}), meant_for_b],  # b lived
        [Event(TARGETED, 6.0, "a", {0: 0}), frozen],  # it was not meant for b
        [meant_for_b, frozen],  # b alone: one death, one session
        [meant_for_b._replace(first={1: 0}), frozen],
        [meant_for_b._replace(at_s=9.0), frozen],  # while b lived
        [meant_for_b, frozen._replace(since_s=22.0)],
    ):
        found = told([*story, *less])
        assert "partition 0 had no owner for 16.5 s" in found.wrong[0]


def test_a_frozen_owner_owns_nothing_and_so_does_nobody_at_the_end() -> None:
    frozen = told(
        [
            *GOOD[:3],
            Event(FROZEN, 28.0, "a", since_s=5.0),
            assigned(17.0, "b", 0),
            GOOD[5]._replace(at_s=18),
        ]
    )
    assert frozen.longest_unowned_ms == 12_000
    ended = told([*GOOD, Event(ENDED, 10.0, "b")])
    assert ended.longest_unowned_ms == 20_000
    never = told([handed(1.0, "a", 0, 0, 10)])
    assert never.longest_unowned_ms == 30_000


def test_lost_records_are_counted() -> None:
    assert told([*GOOD[:5], handed(5.3, "b", 0, 7, 9)]).lost == 2
    assert told([], end=4).lost == 4
    assert told(GOOD, slots=2).lost == 10, "a partition that nobody read"


def test_repeats_are_counted_and_those_of_committed_records_are_wrong() -> None:
    uncommitted = told([*GOOD[:2], *GOOD[3:5], handed(5.3, "b", 0, 0, 10)])
    assert (uncommitted.repeated, uncommitted.repeated_committed, uncommitted.wrong) == (6, 0, ())
    again = told([*GOOD[:5], handed(5.3, "b", 0, 4, 10)])
    assert (again.repeated, again.repeated_committed) == (2, 1)
    assert "got 4 after 6 was committed" in again.wrong[0]


def test_commits_that_go_back_are_found() -> None:
    back = told([*GOOD, committed(6.0, 6.1, "b", 0, 9)])
    assert back.commits_back == 1
    seen = told([*GOOD, Event(OBSERVED, 6.1, "", {}, {0: 9}, 6.0)])
    assert seen.commits_back == 1
    side_by_side = told([*GOOD, committed(5.45, 6.1, "b", 0, 9)])
    assert side_by_side.commits_back == 0, "it began before the other was answered"


def stream(who: str, times_s: Sequence[float], slot: int = 0) -> list[Event]:
    return [handed(at_s, who, slot, number, number + 1) for number, at_s in enumerate(times_s)]


def paused(gap_s: float, *more: Event) -> Verdict:
    """Partition 0 is kept by a while 1 goes; it gives nothing for `gap_s` around that."""
    times_s = [0.5 + number * 0.02 for number in range(20)]
    times_s += [times_s[-1] + gap_s + number * 0.02 for number in range(20)]
    events = [
        assigned(0.0, "a", 0, 1),
        *stream("a", times_s),
        revoked(0.9, "a", 1),
        assigned(1.0, "b", 1),
        handed(1.1, "b", 1, 0, len(times_s)),
        *more,
    ]
    return told(events, end=len(times_s), slots=2)


def test_pauses_of_kept_partitions_are_found() -> None:
    assert paused(0.08).wrong == ()
    found = paused(0.3)
    assert found.longest_pause_ms == 300
    assert "gave nothing for 300 ms" in found.wrong[0]


def test_what_is_not_the_groups_doing_is_no_pause() -> None:
    stalled = paused(0.3, Event(STALLED, 1.15, "a", since_s=0.9))
    assert (stalled.wrong, stalled.longest_pause_ms) == ((), 50)
    assert paused(0.3, Event(BROKEN, 3.0, since_s=0.0)).wrong == ()
    assert paused(0.3, Event(STALLED, 1.15, "b", since_s=0.9)).wrong != (), "another's"
    dry = stream("a", [0.85, 1.45])
    told_late = [*dry[:1], dry[1]._replace(since_s=1.4)]
    quiet = [assigned(0.0, "a", 0), *told_late, assigned(1.0, "a", 1), handed(1.1, "a", 1, 0, 2)]
    assert told(quiet, end=2, slots=2).longest_pause_ms == 50, "nobody had sent anything"
    calm = [assigned(0.0, "a", 0), *stream("a", [5.0, 7.0, 7.1])]
    assert told(calm, end=3).wrong == (), "no change was near"


def outsider(*waits: tuple[float, float], slot: int = 0) -> list[Event]:
    """Arrivals at a reader without a group, `(at_s, sent_s)`."""
    return [
        Event(SEEN, at_s, "outsider", {slot: number}, {slot: number + 1}, sent_s)
        for number, (at_s, sent_s) in enumerate(waits)
    ]


def test_what_a_reader_without_a_group_waited_for_as_well_is_no_pause() -> None:
    """The kept partition gives nothing from 0.88 to 1.18."""
    as_long = outsider((0.8, 0.8), (1.15, 0.8))
    assert (paused(0.3, *as_long).wrong, paused(0.3, *as_long).longest_pause_ms) == ((), 30)
    elsewhere = outsider((0.8, 0.8), (1.15, 0.8), slot=1)
    assert paused(0.3, *elsewhere).longest_pause_ms == 300
    served = outsider((0.8, 0.8), (0.9, 0.89), (1.0, 0.99), (1.1, 1.09), (1.2, 1.19))
    assert paused(0.3, *served).longest_pause_ms == 270, "it waited 10 ms for each"
    both = outsider((0.8, 0.8), (1.0, 0.8))
    stalled = Event(STALLED, 1.1, "a", since_s=0.95)
    assert paused(0.3, *both, stalled).longest_pause_ms == 80, "nothing is counted twice"
    assert paused(0.3, *both).lost == 0


def test_records_that_only_the_outsider_saw_are_lost() -> None:
    assert told(outsider((1.0, 0.9), (1.1, 1.0)), end=2).lost == 2


def test_a_pause_before_all_was_owned_is_left_out() -> None:
    events = [assigned(0.0, "a", 0, 1), *stream("a", [0.5, 0.9]), revoked(0.8, "a", 1)]
    ends = {0: 2}
    assert judge(events, ends, LIMITS, Span(0.0, END_S)).longest_pause_ms == 400
    assert judge(events, ends, LIMITS, Span(0.6, END_S)).longest_pause_ms == 0


@pytest.mark.parametrize(
    ("excused", "left_s"),
    [
        ([], 4.0),
        ([(0, 1), (5, 9)], 4.0),
        ([(0, 9)], 0.0),
        ([(1, 2), (3, 4)], 2.0),
        ([(3, 4), (1, 3.5), (2, 3)], 1.0),
        ([(0, 2), (4, 7)], 2.0),
    ],
)
def test_what_is_left_of_a_gap(excused: list[tuple[float, float]], left_s: float) -> None:
    assert left_of_s(Span(1.0, 5.0), [Span(*one) for one in excused]) == left_s


def test_lines_come_back_and_a_cut_one_is_left_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.log"
    lines = [as_line(event) for event in GOOD]
    assert [parse(line) for line in lines] == GOOD
    path.write_text("\n".join(lines) + '\n{"what":"handed","at')
    other = tmp_path / "b.log"
    other.write_text(as_line(Event(KILLED, 0.5, "c")) + "\n")
    found = read([path, other])
    assert len(found) == len(GOOD) + 1
    assert [event.at_s for event in found] == sorted(event.at_s for event in found)
