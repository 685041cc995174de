"""The till of a small shop. All amounts are in cents."""


def total(items: list[tuple[str, int, int]]) -> int:
    """What the items cost together: name, price of one, and how many."""
    return sum(price for _, price, _ in items)


def change(due: int, given: int) -> int:
    """What is given back. Raises ValueError if it is not enough."""
    if given < due:
        raise ValueError(f"{due - given} cents are missing")
    return given - due
