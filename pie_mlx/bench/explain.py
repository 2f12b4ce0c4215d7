"""What the planner weighed for the last step: seconds of attention that it expected of each grouping."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pie_mlx.errors import Fact

if TYPE_CHECKING:
    from pie_mlx.backend.mlx.planner import StepPlan


def choice(plan: StepPlan | None) -> dict[str, Fact]:
    """Return expected microseconds a layer by grouping, and which one was chosen; empty where no step has run."""
    if plan is None:
        return {}
    from pie_mlx.backend.mlx.planner import Grouping, plan_step

    weighed: dict[str, Fact] = {}
    for grouping in Grouping:
        forced = plan_step(plan.segments, replace(plan.settings, grouping=grouping))
        weighed[grouping.value] = round(sum(group.cost_s for group in forced.groups) * 1e6, 1)
    return {"chosen": plan.grouping.value, "us_per_layer": weighed}


def choice_line(facts: Fact) -> str | None:
    """Say a choice in one line, cheapest first; None where there is none."""
    weighed = facts.get("us_per_layer") if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(weighed, dict) or not weighed:
        return None
    costs = sorted((float(cost), name) for name, cost in weighed.items() if isinstance(cost, int | float))
    shown = ", ".join(f"{name} {cost:,.0f}" for cost, name in costs)
    return f"{facts['chosen']} of: {shown} (expected µs of attention a layer)"
