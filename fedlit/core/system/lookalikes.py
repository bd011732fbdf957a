"""Characters that only look like those of YAML, in text that was copied from a page or a chat."""

import re
import unicodedata

BLANKS = "\x85\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
INVISIBLE = "\u00ad\u061c\u180e\u2060\ufeff" + "".join(
    chr(code)
    for first, last in ((0x200B, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069))
    for code in range(first, last + 1)
)
QUOTES = {"“": '"', "”": '"', "„": '"', "‟": '"', "‘": "'", "’": "'", "‚": "'", "‛": "'"}
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"

PLAIN = {
    **dict.fromkeys(BLANKS + INVISIBLE, " "),
    **QUOTES,
    **dict.fromkeys(DASHES, "-"),
    **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},  # of full width, in Chinese and Japanese text
}
"""Plain characters by those that look like them, and blanks for those that cannot be seen."""

_TABLE = str.maketrans(PLAIN | {"\uff1a": ": ", "\uff0c": ", "})  # YAML needs the blanks, which wide signs contain
_UNSEEN = f"[{BLANKS}{INVISIBLE}]"
_MISTAKEN = re.compile(
    rf"^(?:- ?)?({_UNSEEN})|({_UNSEEN})$|:({_UNSEEN})|({_UNSEEN})[:#]|^([{''.join(QUOTES)}])[^{''.join(QUOTES)}]*\W?$"
)


def mistaken(word: str) -> str | None:
    """Return a character of an unquoted word that YAML reads as a part of it, though it was meant as YAML's own.

    These are blanks at its ends and next to a colon or ``#``, and quotation marks around it.
    """
    match = _MISTAKEN.search(word)
    return match and next(filter(None, match.groups()))


def plain(text: str) -> str:
    """Return a text with plain characters."""
    return text.translate(_TABLE)


def described(sign: str) -> str:
    """Return what is expected in place of a character, what it is, and what to do."""
    expected = repr(PLAIN[sign]) if PLAIN[sign] != " " else "a plain blank"
    if sign in INVISIBLE:
        expected = "no invisible character"
    name = unicodedata.name(sign, "a control character")
    quoted = "put the text in straight quotation marks if it belongs there"
    return f"expected {expected}, found {name} (U+{ord(sign):04X}); replace or remove it, or {quoted}"
