"""x"""


def consume() -> int:
    """x"""
    return 0
