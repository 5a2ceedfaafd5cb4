"""The clock's error is told only where a time service keeps it."""

from producers.time_service import ClockError, clock_error, understood


def test_a_clock_that_nobody_keeps_has_an_unknown_error() -> None:
    assert understood(status=0x40, offset=5, max_error_us=16_000_000) is None


def test_offsets_come_in_microseconds_whatever_the_kernel_counts_in() -> None:
    assert understood(status=0x2001, offset=-3_000, max_error_us=40) == ClockError(offset_us=3, max_error_us=40)
    assert understood(status=0x0001, offset=12, max_error_us=40) == ClockError(offset_us=-12, max_error_us=40)


def test_this_kernel_answers() -> None:
    found = clock_error()
    assert found is None or found.max_error_us >= 0
