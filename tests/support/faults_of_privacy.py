"""Faults with which private steps would not be private, or would cost another epsilon than is said."""

from mutant import Mutant

NOISE, STREAM, SUM = "aggregators/dpsgd.py", "core/batches.py", "core/gradients.py"
CANARIES, DRAWS = "aggregators/test_dpsgd.py", "core/test_poisson_stream.py"

MUTANTS = (
    Mutant("no noise", NOISE, "alpha=noise * self.clip", "alpha=0.0", CANARIES),
    Mutant("half the noise", NOISE, "alpha=noise * self.clip", "alpha=noise * self.clip / 2", CANARIES),
    Mutant("noise does not follow clip", NOISE, "alpha=noise * self.clip", "alpha=noise", CANARIES),
    Mutant("the divisor is the drawn batch", NOISE, "alpha=1 / drawn.batch_size",
           "alpha=1 / max(len(drawn.examples), 1)", CANARIES),
    Mutant("statistics of images leave", NOISE, "if not torch.equal(ctx.stats.nan_to_num(), before.nan_to_num()):",
           "if False:", CANARIES),
    Mutant("the mean is clipped in place of each gradient", SUM,
           "return factors @ gradients.masked_fill_(~norms.isfinite()[:, None], 0.0)",
           "return (m := gradients.mean(0)) * len(gradients) * (clip / m.norm()).clamp(max=1.0)",
           "core/test_gradients.py"),
    Mutant("the batch is clipped", SUM, "scale = float((clip / norm).clamp(max=1.0))",
           "scale = float((clip / (norm + total.norm())).clamp(max=1.0))", "core/test_gradients.py"),
    Mutant("an infinite gradient leaves", SUM, "        if norm.isfinite():", "        if True:",
           "core/test_gradients.py"),
    Mutant("the accountant starts anew each round", "federation/privacy.py", "self._steps[name] += plan.window",
           "self._steps[name] = plan.window", "federation/test_private_runs.py"),
    Mutant("batches are shuffled, and Poisson's are accounted", STREAM,
           "drawn = draw.random(len(self._images)) < self.rate",
           "drawn = draw.permutation(len(self._images)) < self.batch_size", DRAWS),
    Mutant("the rate follows the counted patients", STREAM, "self.declared = rounded_down(len(self._images))",
           "self.declared = len(self._images)", DRAWS),
    Mutant("a patient has two images in a batch", STREAM,
           "[int(draw.choice(self._images[i])) for i in np.flatnonzero(drawn)]",
           "[int(row) for i in np.flatnonzero(drawn) for row in self._images[i]]", DRAWS),
    Mutant("two questions get the same noise", STREAM, "position, self._question.hex()", "position", DRAWS),
    Mutant("the loss of private steps is in the reply", "core/rounds.py",
           "math.nan if stream.private else _mean_loss", "_mean_loss", CANARIES),
    Mutant("logs of private steps are in the reply", "core/rounds.py", "{} if stream.private else {", "{", CANARIES),
    Mutant("a measuring round reads private images", "core/rounds.py", "        if stream.private:",
           "        if False:", CANARIES),
    Mutant("another algorithm reads private images", "core/local_model.py", "if private and not aggregator.private",
           "if False", "federation/test_private_runs.py"),
    Mutant("the budget has no end", "federation/privacy.py", "<= budget:", "<= math.inf:",
           "federation/test_private_runs.py"),
    Mutant("noise at a site follows from the run's seed", "sites/plan.py", "for each in aggregators if each.private]",
           "for each in aggregators if False]", "sites/test_plan_of_privacy.py"),
)  # fmt: skip
