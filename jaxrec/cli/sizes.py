"""Sizes of memory as people write them."""

import os
import re

IMAGE_MEMORY = "50%"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d*)?)\s*(?:%|([kmgt]?)(i?)b?)", re.IGNORECASE)


def parse_size(name: str, text: str) -> int:
    """Reads a number of bytes such as `4GB`, `512MiB` or `50%` of the machine's memory.

    Args:
        name: Of the option, for the error.
        text: What was typed.

    Raises:
        ValueError: If it is no such number.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name}: got {text!r}; give a size such as 4GB, 512MiB or 50%")
    number = float(match[1])
    if text.strip().endswith("%"):
        return int(number / 100 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    unit = match[2].lower()
    factor = 1024 ** "kmgt".index(unit) * 1024 if match[3] and unit else _UNITS[unit]
    return int(number * factor)
