"""What the proxy saved in a session: tokens, money at list price, and requests that would have been refused."""

import msgspec

from proxy.admin import words
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What was saved in a session. not_sent, summaries, net: tokens that prompts were made smaller by, that summaries
    took, and the difference.

    cost: US dollars at list price, of answers and summaries; cost_of_summaries: of it. cost_as_received: of the same
    requests as they came, an estimate. saved: the difference. None if no price is known. kept_alive: requests that
    the upstream would have refused as they came. sentences: the same in words.
    """

    not_sent: int
    summaries: int
    net: int
    cost: float | None
    cost_of_summaries: float | None
    cost_as_received: float | None
    saved: float | None
    kept_alive: int
    sentences: list[str]


def savings_of(tally: Tally) -> Savings:
    """Return what was saved in a session. If nothing was changed, it is 0."""
    cost = made = received = saved = None
    if figures.has_price(tally):
        made, received = figures.cost_of_summaries(tally), figures.cost_as_received(tally)
        cost, saved = figures.cost_of_answers(tally) + made, figures.usd_saved(tally)
    return Savings(
        not_sent=figures.not_sent(tally),
        summaries=figures.summaries(tally),
        net=figures.net(tally),
        cost=cost,
        cost_of_summaries=made,
        cost_as_received=received,
        saved=saved,
        kept_alive=tally.kept_alive,
        sentences=[*_tokens(tally), *_money(cost, made, received, saved), *_refusals(tally)],
    )


def _tokens(tally: Tally) -> list[str]:
    took, net = figures.summaries(tally), figures.net(tally)
    if figures.not_sent(tally) == 0 and not took:
        return ["Nothing was changed in its prompts, so nothing was saved and nothing was lost."]
    smaller = (
        f"Of {words.exact(tally.received)} tokens of prompts, {words.exact(figures.not_sent(tally))} were not sent."
    )
    if not took:
        return [smaller]
    kind = "fewer" if net >= 0 else "more"
    return [f"{smaller} Summaries took {words.exact(took)}: {words.exact(abs(net))} {kind} in all."]


def _money(cost: float | None, made: float | None, received: float | None, saved: float | None) -> list[str]:
    if saved is None:
        return ["No price is known for its model, so the money is not known."]
    paid = f"It cost {words.usd(cost)} at list price"
    paid += f", {words.usd(made)} of it for summaries." if made else "."
    if saved == 0:
        return [f"{paid} As it came it would have cost the same."]
    kind = "less" if saved > 0 else "more"
    as_received = f"As it came it would have cost {words.usd(received)} by estimate"
    return [f"{paid} {as_received}: {words.usd(abs(saved))} {kind} was paid."]


def _refusals(tally: Tally) -> list[str]:
    if not tally.kept_alive:
        return []
    refused = words.plural(tally.kept_alive, "request")
    without = f"Without the proxy, {refused} would have been refused as too long for the model."
    return [f"{without} They count as if they had been taken."]
