"""The savings of a session: tokens, cost at list price, and requests that would have been refused."""

import msgspec

from proxy.admin import words
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """The savings of a session.

    not_sent, summaries, net: tokens removed from prompts, tokens of summaries, and the difference.
    cost: US dollars at list price, with summaries. cost_of_summaries: part of it. cost_as_received: estimated cost of
    the unchanged requests. saved: the difference. All None if no price is known. kept_alive: requests that the upstream
    would have refused unchanged. sentences: these figures in words.
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
    """Return the savings of a session. They are 0 if nothing was changed."""
    cost = summary_cost = received = saved = None
    if figures.has_price(tally):
        summary_cost, received = figures.cost_of_summaries(tally), figures.cost_as_received(tally)
        cost, saved = figures.cost_of_answers(tally) + summary_cost, figures.usd_saved(tally)
    return Savings(
        not_sent=figures.not_sent(tally),
        summaries=figures.summaries(tally),
        net=figures.net(tally),
        cost=cost,
        cost_of_summaries=summary_cost,
        cost_as_received=received,
        saved=saved,
        kept_alive=tally.kept_alive,
        sentences=[*_tokens(tally), *_money(cost, summary_cost, received, saved), *_refusals(tally)],
    )


def _tokens(tally: Tally) -> list[str]:
    took, net = figures.summaries(tally), figures.net(tally)
    if figures.not_sent(tally) == 0 and not took:
        return ["Its prompts were not changed, so nothing was saved or lost."]
    smaller = (
        f"Of {words.exact(tally.received)} tokens of prompts, {words.exact(figures.not_sent(tally))} were not sent."
    )
    if not took:
        return [smaller]
    kind = "fewer" if net >= 0 else "more"
    return [f"{smaller} Summaries took {words.exact(took)}: {words.exact(abs(net))} {kind} in all."]


def _money(cost: float | None, summary_cost: float | None, received: float | None, saved: float | None) -> list[str]:
    if saved is None:
        return ["The price of its model is unknown, so the cost is too."]
    paid = f"It cost {words.usd(cost)} at list price"
    paid += f", {words.usd(summary_cost)} of it for summaries." if summary_cost else "."
    if saved == 0:
        return [f"{paid} Without the proxy it would have cost the same."]
    kind = "less" if saved > 0 else "more"
    as_received = f"Without the proxy it would have cost an estimated {words.usd(received)}"
    return [f"{paid} {as_received}: {words.usd(abs(saved))} {kind}."]


def _refusals(tally: Tally) -> list[str]:
    if not tally.kept_alive:
        return []
    refused = words.plural(tally.kept_alive, "request")
    without = f"Without the proxy, {refused} would have been refused as too long for the model."
    return [f"{without} Their cost counts as if they had been accepted."]
