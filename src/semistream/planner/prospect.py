"""How long the rest of a stream takes with each candidate, seen from the operator that is at work.

That one goes on in the state it is in; any other begins with an empty cache, after the one at work has finished what
waits. What operators really achieved corrects their formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from semistream.engine.chunk import JoinStats
from semistream.planner.plan import Candidate


@dataclass
class Experience:
    """What operators achieved: part of the speed that was predicted for their age, and hits beyond the predicted."""

    parts: dict[str, float] = field(default_factory=dict)
    hits: dict[str, float] = field(default_factory=dict)

    def part(self, candidate: Candidate) -> float:
        """What to expect of an operator beside its formula; one that never ran is taken to be off as the others are."""
        if not self.parts:
            return 1.0
        usual = math.exp(sum(math.log(part) for part in self.parts.values()) / len(self.parts))
        return self.parts.get(candidate.algorithm, usual)

    def learn(self, candidate: Candidate, done: JoinStats, before: int, seconds: float) -> None:
        """Take over what an operator has `done` after it had had `before` tuples; while H_S fills that is no speed."""
        self.hits[candidate.algorithm] = done.hit_rate - candidate.outlook.hit_rate(done.tuples_in, before)
        if seconds > 0 and done.tuples_in and done.has_turned_over:
            self.parts[candidate.algorithm] = candidate.outlook.seconds(done.tuples_in, before) / seconds

    def text(self) -> str:
        """The parts, for people."""
        return "parts of the predicted speed: " + ", ".join(f"{name} {part:.2f}" for name, part in self.parts.items())


@dataclass(frozen=True)
class Prospect:
    """What is still to come: `ahead` tuples, with an operator at work that has had `seen`."""

    experience: Experience
    ahead: float
    running: Candidate
    seen: float

    def rate(self, candidate: Candidate) -> float:
        """Tuples per second over what is ahead; at rest where that has no end."""
        if math.isinf(self.ahead):
            return candidate.prediction.service_rate_per_s * self.experience.part(candidate)
        return self.ahead / max(self.seconds(candidate), 1e-12)

    def seconds(self, candidate: Candidate) -> float:
        """What all that is ahead takes with a candidate."""
        outlook, part = candidate.outlook, self.experience.part(candidate)
        if same(candidate, self.running):
            return (outlook.seconds(self.ahead, self.seen) + outlook.at(self.seen + self.ahead).leave_s) / part
        return outlook.total_s(self.ahead) / part + self.leave_s

    @property
    def seconds_left(self) -> float:
        """What all that is ahead takes the operator at work: planning, which takes a while, must pay in it."""
        return self.seconds(self.running)

    @property
    def leave_s(self) -> float:
        """What it takes to leave the operator at work."""
        return self.running.outlook.at(self.seen).leave_s / self.experience.part(self.running)

    @property
    def learnt_s(self) -> float:
        """What the operator at work has learnt and loaded is worth: how much longer it would take from the start."""
        if math.isinf(self.ahead):
            return 0.0
        outlook = self.running.outlook
        more = outlook.rest.start_s + outlook.seconds(self.ahead) - outlook.seconds(self.ahead, self.seen)
        return max(more, 0.0) / self.experience.part(self.running)


def same(a: Candidate, b: Candidate) -> bool:
    """Whether two candidates are the same operator with the same sizes."""
    return (a.algorithm, dict(a.options)) == (b.algorithm, dict(b.options))
