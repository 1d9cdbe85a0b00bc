"""Changes to an input that have found faults in parsers before: bits, lengths, pieces, tokens, other inputs.

Everything random comes from the generator handed in, so a seed repeats a session.
"""

import json
import random

INTERESTING = (
    0,
    1,
    7,
    8,
    16,
    32,
    64,
    100,
    127,
    128,
    255,
    256,
    1023,
    4096,
    32767,
    32768,
    65535,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
TOKENS = (
    b"null",
    b"true",
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e999",
    b"9" * 40,
    b'"',
    b"[" * 64,
    b"{" * 64,
    b"../",
    b"/",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"-o",
    b"--",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b"PK\x03\x04",
)


def _flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _set_number(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((2, 4, 8))
    if len(data) < size:
        return
    value = rng.choice(INTERESTING) % (1 << 8 * size)
    start = rng.randrange(len(data) - size + 1)
    data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _set_digits(data: bytearray, rng: random.Random) -> None:
    places = [place for place, byte in enumerate(data[:20000]) if 48 <= byte <= 57]
    if places:
        start = end = rng.choice(places)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        data[start:end] = str(rng.choice(INTERESTING) * rng.choice((1, 1, -1))).encode()


def _delete(data: bytearray, rng: random.Random) -> None:
    if data:
        start = rng.randrange(len(data))
        del data[start : start + rng.choice((1, 1, 2, 4, 16, 256))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    if data:
        start = rng.randrange(len(data))
        piece = data[start : start + rng.choice((1, 2, 8, 64, 1024))]
        data[start:start] = piece * rng.choice((1, 1, 2, 8))


def _insert(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.choice((rng.choice(TOKENS), rng.randbytes(rng.choice((1, 2, 8)))))


def _truncate(data: bytearray, rng: random.Random) -> None:
    if data:
        del data[rng.randrange(len(data)) :]


STEPS = (_flip_bit, _flip_bit, _set_byte, _set_number, _set_digits, _delete, _repeat, _insert, _truncate)


def mutated(data: bytes, others: list[bytes], rng: random.Random, size_max: int) -> bytes:
    """Return `data` with one to eight changes, sometimes crossed with another input."""
    result = bytearray(data)
    if others and rng.random() < 0.1:
        other = rng.choice(others)
        if other:
            at, start = rng.randrange(len(result) + 1), rng.randrange(len(other))
            result[at : at + rng.choice((0, 16, 1 << 30))] = other[
                start : start + rng.choice((16, 256, 1 << 30))
            ]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        rng.choice(STEPS)(result, rng)
    return bytes(result[:size_max])


VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "-x",
    "a" * 5000,
    "\x00",
    "\ud800",
    "../x",
    [],
    {},
    [[]],
    [0] * 300,
    {"a": {"a": {}}},
)


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """Change one place of a JSON document by its structure; what is no JSON comes back with changed bytes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return mutated(data, [], rng, 1 << 20)
    holder = [document]
    place, key = holder, 0
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.85:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    kind = rng.randrange(5)
    if kind == 0 and place is not holder:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[rng.choice(("", "x", "\x00", "-x", f"{key}2"))] = place[key]
    elif kind == 2 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
        place[key] = rng.choice(
            (place[key] + 1, place[key] - 1, -place[key], place[key] * 1000, str(place[key]))
        )
    elif kind == 3 and isinstance(place[key], list):
        place[key] = (place[key] * rng.choice((2, 10)))[:5000]
    else:
        place[key] = rng.choice(VALUES)
    return json.dumps(holder[0]).encode()
