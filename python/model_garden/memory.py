"""This process's memory as the kernel counts it, and amounts in words. Reading it takes tens of microseconds."""

MIB = 1 << 20


def resident_bytes():
    """The resident memory of this process, or None where /proc does not exist."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:
            text = file.read(4096)
        begin = text.index(b"VmRSS:") + 6
        return int(text[begin:text.index(b"kB", begin)]) << 10
    except (OSError, ValueError):
        return None


def format_bytes(amount):
    """An amount with three digits and a unit, in powers of 1024: `72.4 MiB`."""
    size = abs(amount)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1023.5:
            break
        size, unit = size / 1024, larger
    sign = "-" if amount < 0 else ""
    digits = 0 if unit == "B" or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{sign}{size:.{digits}f} {unit}"


def format_change(amount):
    """As `format_bytes`, with its sign."""
    return format_bytes(amount) if amount < 0 else "+" + format_bytes(amount)
