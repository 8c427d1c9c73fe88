"""Quotients of integers, rounded as Python rounds them, however large the integers are.

The public simulator divides Python's integers: the result is the double nearest to the true quotient. Costs times
staleness exceed 2^53 on real logs, and the quotient of two rounded doubles can then differ in the last bit, which is enough
to change the victim.
"""

from __future__ import annotations

import math

import numpy as np

from remat.algorithms._arrays.jit import inner_kernel

_EXACT = 9007199254740992.0  # 2^53: up to here doubles are whole numbers
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ZERO = np.uint64(0)
_BIT = np.uint64(1)
_TOP = np.uint64(63)


@inner_kernel
def bits_of(high: np.uint64, low: np.uint64) -> int:
    """Number of bits of a 128-bit number."""
    n, w = 0, low
    if high != _ZERO:
        n, w = 64, high
    while w != _ZERO:
        n += 1
        w >>= _BIT
    return n


@inner_kernel
def quotient(number: int, size: int, late: int) -> float:
    """`number / (size * late)` as a double; `size` and `late` are at least 1 and below 2^63, so is the number's magnitude."""
    rough = float(size) * float(late)
    if abs(float(number)) <= _EXACT and rough <= _EXACT:
        return float(number) / rough
    a, b = np.uint64(size), np.uint64(late)
    low_low, cross = (a & _LOW) * (b & _LOW), (a >> _HALF) * (b & _LOW)
    middle = cross + (low_low >> _HALF)
    middle_low = (middle & _LOW) + (a & _LOW) * (b >> _HALF)
    high = (a >> _HALF) * (b >> _HALF) + (middle >> _HALF) + (middle_low >> _HALF)
    low = (middle_low << _HALF) | (low_low & _LOW)
    return divided(np.uint64(abs(number)), high, low) * (1.0 if number >= 0 else -1.0)


@inner_kernel
def divided(number: np.uint64, high: np.uint64, low: np.uint64) -> float:
    """A 64-bit number divided by a 128-bit one (below 2^126), rounded to nearest, ties to even: long division, bit by bit."""
    if number == _ZERO:
        return 0.0
    exponent = bits_of(_ZERO, number) - bits_of(high, low)
    rest_high, rest_low = _ZERO, number
    for _ in range(abs(exponent)):  # bring both to the same length
        if exponent > 0:
            high, low = (high << _BIT) | (low >> _TOP), low << _BIT
        else:
            rest_high, rest_low = (rest_high << _BIT) | (rest_low >> _TOP), rest_low << _BIT
    digits = _ZERO
    steps = 0
    while digits < np.uint64(1) << np.uint64(53):  # 53 bits and one to round by
        digits <<= _BIT
        steps += 1
        if rest_high > high or (rest_high == high and rest_low >= low):
            digits |= _BIT
            borrow = _BIT if rest_low < low else _ZERO
            rest_high, rest_low = rest_high - high - borrow, rest_low - low
        rest_high, rest_low = (rest_high << _BIT) | (rest_low >> _TOP), rest_low << _BIT
    up = digits & _BIT != _ZERO and (rest_high != _ZERO or rest_low != _ZERO or digits & np.uint64(2) != _ZERO)
    whole = (digits >> _BIT) + (_BIT if up else _ZERO)
    return math.ldexp(float(whole), exponent - steps + 2)
