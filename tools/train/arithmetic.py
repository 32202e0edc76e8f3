"""Written arithmetic in steps small enough for a tiny model.

Each function returns one line of thinking and the result, for instance
`458+367: 8+7=15,5+6+1=12,4+3+1=8 -> 825`.
"""


def digits(n: int, width: int = 0) -> list[int]:
    """Decimal digits of n, lowest first, padded with zeros to `width`."""
    out = [int(c) for c in reversed(str(n))]
    return out + [0] * (width - len(out))


def add(a: int, b: int) -> tuple[str, int]:
    """Column addition with carries."""
    width = max(len(str(a)), len(str(b)))
    parts, carry = [], 0
    for x, y in zip(digits(a, width), digits(b, width)):
        total = x + y + carry
        parts.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return f"{a}+{b}: {','.join(parts)} -> {a + b}", a + b


def subtract(a: int, b: int) -> tuple[str, int]:
    """Column subtraction with borrows; a must not be smaller than b."""
    if b > a:
        raise ValueError(f"subtract: {a} is smaller than {b}")
    width = len(str(a))
    parts, borrow = [], 0
    for x, y in zip(digits(a, width), digits(b, width)):
        need = x - borrow - y < 0
        value = x + 10 * need - borrow - y
        parts.append(f"{x + 10 * need}{'-1' if borrow else ''}-{y}={value}")
        borrow = int(need)
    return f"{a}-{b}: {','.join(parts)} -> {a - b}", a - b


def times_digit(a: int, d: int) -> str:
    """Columns of a number times one digit: `47*6: 7*6=42,4*6=24,24+4=28 -> 282`."""
    parts, carry = [], 0
    for x in digits(a):
        product = x * d
        parts.append(f"{x}*{d}={product}")
        if carry:
            parts.append(f"{product}+{carry}={product + carry}")
            product += carry
        carry = product // 10
    return f"{a}*{d}: {','.join(parts)} -> {a * d}"


def multiply(a: int, b: int) -> tuple[str, int]:
    """Multiplication by one digit, by ten, or by two digits as two partial products."""
    if b > a:
        a, b = b, a
    if b < 10:
        return times_digit(a, b), a * b
    tens, ones = divmod(b, 10)
    high = a * tens * 10
    first = f"{a}*{tens * 10}={high}" if tens == 1 else f"{times_digit(a, tens)},{a}*{tens * 10}={high}"
    if not ones:
        return f"{a}*{b}: {first} -> {a * b}", a * b
    return f"{a}*{b}: {first}; {times_digit(a, ones)}; {add(high, a * ones)[0]}", a * b


def divide(a: int, d: int) -> tuple[str, int]:
    """Exact long division by a small number, checked by multiplication."""
    if a % d:
        raise ValueError(f"divide: {a} is not a multiple of {d}")
    parts, rest, started = [], 0, False
    for x in reversed(digits(a)):
        value = rest * 10 + x
        started = started or value >= d
        if started:
            parts.append(f"{value}/{d}={value // d} rest {value % d}")
        rest = value % d
    return f"{a}/{d}: {','.join(parts)} -> {a // d}; check {multiply(a // d, d)[0]}", a // d


OPERATIONS = {"+": add, "-": subtract, "*": multiply, "/": divide}
