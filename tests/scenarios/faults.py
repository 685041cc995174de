"""Cut streams, error objects, HTTP errors: never an answer, never a second start, always a bound."""

from __future__ import annotations

from typing import Any

from interlock import ProviderError

from .checks import answered, never_sent, raised, ran, requests, result_of, roles, used
from .play import Check, Play, Scenario
from .rounds import Calls, Chunks, Explodes, ForEver, Round, Says, Status, Torn, Trails
from .stage import ASKS_AGAIN, PASSES, TRACES

DONE = Says("All done.")
FULL = Says("The full answer is forty-two.")
WHOLE = answered("The full answer is forty-two.")
CHARGE = Calls(("c1", "charge", {"amount": 5}))
QUESTION = ("How are you?",)
BEGUN = Says("The full answer")


def _scenario(name: str, rounds: Any, *checks: Any, **rest: Any) -> Scenario:
    count = [] if isinstance(rounds[-1], ForEver) else [requests(len(rounds))]
    return Scenario(name=name, rounds=rounds, checks=(*checks, *count), **{"prompts": QUESTION, **rest})


def waited(request: int, seconds: float) -> Check:
    """The request came that long after the one before it."""

    def check(play: Play) -> str | None:
        first, second = (play.server.requests[place].at for place in (request - 2, request - 1))
        return None if second - first >= seconds else f"request {request} came after {second - first:.3f} s, not {seconds}"

    return check


_CUTS: list[tuple[str, Round]] = [
    ("the connection breaks before the first chunk", Torn(BEGUN, 0)),
    ("the connection breaks in the text", Torn(BEGUN)),
    ("the reply trails off in good order", Trails(BEGUN)),
    ("an error object comes after some text", Explodes("server_error", "The full ")),
    ("an error object comes first", Explodes(503)),
    ("an HTTP 500", Status(500)),
    ("an HTTP 503 with an HTML page's patience", Status(503, {"Retry-After": "0"})),
]
_THEN_WELL = [_scenario(f"{name}, then all is well", (fault, FULL), WHOLE, used(20, 7)) for name, fault in _CUTS]
_THRICE = [_scenario(f"{name}, three times, then all is well", (fault, fault, fault, FULL), WHOLE) for name, fault in _CUTS[:4]]
_FOR_EVER = [_scenario(f"{name}, for ever", (ForEver(fault),), requests(4), raised(ProviderError)) for name, fault in _CUTS[:6]]
_SECOND_TURN = [
    _scenario(
        f"{name}, in the second turn",
        (CHARGE, fault, fault, DONE),
        ran("charge", {"amount": 5}),
        roles(4, "uat"),
        answered("All done."),
    )
    for name, fault in _CUTS
]

_OTHERS = [
    _scenario(
        "the connection breaks in a call's arguments",
        (Torn(Calls(("c1", "charge", {"amount": 1})), 2), Calls(("c1", "charge", {"amount": 100})), DONE),
        ran("charge", {"amount": 100}),
        answered("All done."),
    ),
    _scenario(
        "the connection breaks right after a complete call",
        (Torn(CHARGE), Torn(CHARGE), CHARGE, DONE),
        ran("charge", {"amount": 5}),
        answered("All done."),
    ),
    _scenario("a 429 that says how long", (Status(429, {"Retry-After": "0.15"}), FULL), WHOLE, waited(2, 0.14)),
    _scenario("a 429 that says it in milliseconds", (Status(429, {"retry-after-ms": "150"}), FULL), WHOLE, waited(2, 0.14)),
    _scenario(
        "a 429 for ever",
        (ForEver(Status(429, {"retry-after-ms": "20"})),),
        requests(4),
        raised(ProviderError, "429"),
        waited(2, 0.019),
        waited(4, 0.019),
    ),
    _scenario(
        "a 429 that asks for more than is allowed",
        (Status(429, {"Retry-After": "3600"}),),
        raised(ProviderError, "429"),
    ),
    _scenario("a 400", (Status(400),), raised(ProviderError, "400")),
    _scenario("a 401", (Status(401),), raised(ProviderError, "401", "key")),
    _scenario(
        "an error object with a 400 in it",
        (Explodes(400, "par", message="bad input"),),
        raised(ProviderError, "bad input"),
    ),
    _scenario(
        "chunks without choices, reasoning, usage in the middle",
        (
            Chunks(
                (
                    {"none": 1},
                    {"r": "THINK hard"},
                    {"t": "The full answer is forty-two."},
                    {"none": 1},
                    {"f": "stop"},
                    {"u": (1, 1)},
                    {"none": 1},
                )
            ),
        ),
        WHOLE,
        used(1, 1),
        never_sent("THINK"),
    ),
    _scenario("a finish reason that nobody knows", (Says("The full answer is forty-two.", finish="eos_token"),), WHOLE),
    _scenario(
        "a finish reason that nobody knows, with a call",
        (Calls(("c1", "charge", {"amount": 5}), finish="eos_token"), DONE),
        ran("charge", {"amount": 5}),
        answered("All done."),
    ),
    _scenario("[DONE] and no finish reason", (Says("The full answer is forty-two.", finish=None),), WHOLE, plain=False),
    _scenario(
        "the retries of each turn are counted on their own",
        (Status(500), Status(500), Status(500), CHARGE, Status(500), Status(500), Status(500), DONE),
        ran("charge", {"amount": 5}),
        answered("All done."),
    ),
    _scenario(
        "a layer asks again by itself",
        (Torn(BEGUN, 0), FULL),
        WHOLE,
        used(20, 7),
        layers=[TRACES, ASKS_AGAIN],
    ),
    _scenario(
        "a failed run is superseded by the next",
        (CHARGE, Status(400), Says("Second.")),
        raised(ProviderError, "400"),
        answered("Second.", turn=1),
        ran("charge", {"amount": 5}),
        result_of("c1", "charged 5"),
        roles(3, "uatu"),
        prompts=(*QUESTION, "And now?"),
        layers=[PASSES],
    ),
]

SCENARIOS = [*_THEN_WELL, *_THRICE, *_FOR_EVER, *_SECOND_TURN, *_OTHERS]
