"""Numbers that can be told from other numbers: payment cards (ISO/IEC 7812) and bank accounts (ISO 13616)."""

from __future__ import annotations

import re
from functools import lru_cache

# Issuers' prefixes as ranges of their first digits, and the lengths that each one issues.
_ISSUERS: tuple[tuple[int, int, frozenset[int]], ...] = (
    (4, 4, frozenset({16, 19})),  # Visa
    (51, 55, frozenset({16})),  # Mastercard
    (2221, 2720, frozenset({16})),
    (34, 34, frozenset({15})),  # American Express
    (37, 37, frozenset({15})),
    (300, 305, frozenset(range(14, 20))),  # Diners Club
    (3095, 3095, frozenset(range(14, 20))),
    (36, 36, frozenset(range(14, 20))),
    (38, 39, frozenset(range(14, 20))),
    (6011, 6011, frozenset(range(16, 20))),  # Discover
    (644, 649, frozenset(range(16, 20))),
    (65, 65, frozenset(range(16, 20))),
    (3528, 3589, frozenset(range(16, 20))),  # JCB
    (62, 62, frozenset(range(16, 20))),  # UnionPay
    (81, 81, frozenset(range(16, 20))),  # UnionPay, RuPay
    (2200, 2204, frozenset(range(16, 20))),  # Mir
    (60, 60, frozenset({16})),  # RuPay
    (508, 508, frozenset({16})),
    (5018, 5018, frozenset(range(14, 20))),  # Maestro
    (5020, 5020, frozenset(range(14, 20))),
    (5038, 5038, frozenset(range(14, 20))),
    (5893, 5893, frozenset(range(14, 20))),
    (6304, 6304, frozenset(range(14, 20))),
    (6759, 6759, frozenset(range(14, 20))),
    (6761, 6763, frozenset(range(14, 20))),
)

# The IBAN Registry, https://www.swift.com/standards/data-standards/iban-international-bank-account-number
_IBAN_LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        "([A-Z]{2})([0-9]{2})",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
        "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
        "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
        "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
        "YE30",
    )
}


def is_card_number(digits: str) -> bool:
    """Whether digits are a payment card's number: an issuer's prefix, one of its lengths, and the Luhn check digit.

    Numbers of 13 digits never are: no card has had one for decades, and one in ten of the bar codes does (GS1 prefixes
    40 to 49, 50).
    """
    return len(digits) in _issued(digits[:4]) and _luhn(digits)


@lru_cache(maxsize=10_000)
def _issued(prefix: str) -> frozenset[int]:
    """The lengths that are issued for the first four digits."""
    ranges = (lengths for low, high, lengths in _ISSUERS if low <= int(prefix[: len(str(low))]) <= high)
    return frozenset().union(*ranges)


# ISO/IEC 7812-1, annex B: every second digit from the right counts twice, and twice 7 is 1 + 4.
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def _luhn(digits: str) -> bool:
    doubled = map(_DOUBLED.__getitem__, map(int, digits[-2::-2]))
    return (sum(map(int, digits[::-2])) + sum(doubled)) % 10 == 0


def iban_length(country: str) -> int | None:
    """How many characters a country's account numbers have, or None for a country that has none."""
    return _IBAN_LENGTHS.get(country)


def is_iban(text: str) -> bool:
    """Whether text without spaces is an IBAN: the country's length, and the check digits (ISO/IEC 7064, MOD 97-10)."""
    if len(text) != iban_length(text[:2]):
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1
