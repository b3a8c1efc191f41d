"""Named length limits of services, programs and style guides."""

from difflib import get_close_matches
from typing import Any


# `docs/limits.md` has the source of each limit.
PRESETS: dict[str, tuple[str, int]] = {
    "apns": ("byte", 4076),  # 4,096 bytes with {"aps":{"alert":""}}
    "bbc": ("width", 37),
    "bluesky": ("grapheme", 300),
    "commit_subject": ("character", 50),
    "google_ads_headline": ("width", 30),
    "netflix": ("width", 42),
    "seo_title": ("arial", 30_000),  # 600 pixels of Arial at 20 pixels per em
    "sms": ("sms", 160),
    "x": ("x", 280),
}


def limit_of(length: Any, unit: Any) -> tuple[Any, Any]:
    """
    Return two values: a length, and its unit. If `length` is a name in `PRESETS`, return the limit with this name and
    the unit of this limit. Otherwise return `length` and `unit` unchanged. Raise `ValueError` if `unit` is not the
    unit of the limit, or if `length` is a misspelt name of a limit.

    Example:

    ```python
    >>> from hf_lenctrl.inference.presets import limit_of
    >>> limit_of("bluesky", None), limit_of(300, "byte")
    ((300, 'grapheme'), (300, 'byte'))

    ```
    """
    if not isinstance(length, str):
        return length, unit
    if length not in PRESETS:
        if near := get_close_matches(length, PRESETS, n=1):
            raise ValueError(f"no limit has the name {length!r}; did you mean {near[0]!r}?")
        return length, unit
    own, most = PRESETS[length]
    if unit not in (None, own):
        raise ValueError(f"length={length!r} counts the unit {own}, got length_unit={unit!r}; leave length_unit out")
    return most, own
