"""Points in time that logs write as text."""

import calendar
import re

_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z?")


def nanoseconds_of(text: str) -> int | None:
    """Nanoseconds since 1970 of a stamp such as `2011-09-26 13:02:25.964389445`.

    Args:
        text: A date and a time of day in UTC, with `T` or a space between them; up to nine
            decimals, and `Z` or nothing at the end.

    Returns:
        The exact number, which need not fit into 64 bits: logs with altered dates reach beyond
        2262. None if the text is no such stamp.
    """
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        return None
    fields = [int(field) for field in match.groups()[:6]]
    seconds = calendar.timegm((*fields, 0, 0, 0))
    return seconds * 10**9 + int((match[7] or "").ljust(9, "0") or "0")
