"""What a request costs: from the model itself, or from a price list that others keep up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from ..messages import Usage
from ..model import Model


def price_of(model: Model) -> Callable[[Usage], float]:
    """Dollars for a usage. A model that knows says so itself, by a method ``cost_usd(usage)``; of any other the list of genai-prices is
    asked for its ``name`` at its ``base_url``. Of several models as one, the dearest counts.

    Raises UsageError if nobody knows a price: a limit that never counts would be none.
    """
    own: Callable[[Usage], float] | None = getattr(model, "cost_usd", None)
    if callable(own):
        return _checked(own, str(getattr(model, "name", type(model).__name__)))
    several: tuple[Model, ...] = getattr(model, "models", ())  # of a FallbackModel: whichever answers, the dearest is assumed
    if several:
        prices = [price_of(one) for one in several]
        return lambda usage: max(price(usage) for price in prices)
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError as error:
        raise UsageError('limits.cost_usd needs a price list: pip install "interlock[prices]"') from error
    name, where = str(getattr(model, "name", type(model).__name__)), getattr(model, "base_url", None)
    provider: dict[str, Any] = {"provider_api_url": where} if where else {}

    def price(usage: Usage) -> float:
        tokens = Tokens(
            input_tokens=usage.input_tokens or 0,
            output_tokens=usage.output_tokens or 0,
            cache_read_tokens=usage.cached_input_tokens or 0,
            cache_write_tokens=usage.cache_write_tokens or 0,
        )
        return float(calc_price(tokens, model_ref=name, **provider).total_price)

    try:
        price(Usage(input_tokens=1, output_tokens=1))
    except LookupError as error:
        raise UsageError(
            f"limits.cost_usd: no price is known for the model {name!r}{f' at {where}' if where else ''}. "
            "Update genai-prices, or give the model a method cost_usd(usage) that returns dollars"
        ) from error
    return price


def _checked(own: Callable[[Usage], object], name: str) -> Callable[[Usage], float]:
    """``own``, which is other people's: against nan, or less than nothing, no limit would ever be reached."""

    def price(usage: Usage) -> float:
        dollars = own(usage)
        if isinstance(dollars, int | float) and not isinstance(dollars, bool) and 0 <= dollars <= sys.float_info.max:
            return float(dollars)
        said = repr(dollars) if isinstance(dollars, float) else f"such {type(dollars).__name__}"
        raise UsageError(f"cost_usd(usage) of the model {name!r} must return dollars, a finite number from 0, not {said}")

    return price
