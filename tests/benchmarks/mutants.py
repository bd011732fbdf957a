"""Check that the fast tests detect faults in the code.

    python tests/benchmarks/mutants.py [--jobs 2] [WORD ...]

For each mutant, the command breaks a copy of the code in one place and runs the fast tests of a folder or file, of
which at least one must fail. WORDs select mutants whose description contains one of them. All mutants take about an
hour on two cores.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 900


@dataclass(frozen=True)
class Mutant:
    """A fault in one place of the code.

    Attributes:
        what: Description of the fault.
        file: The file, below ``fedlit/``.
        old: A text that occurs once in the file.
        new: The replacement.
        tests: The folder or file, below ``tests/``, whose fast tests must detect the fault.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    # One client's round.
    Mutant("batches start again each round", "core/rounds.py", "Draws(stream, state.batches,", "Draws(stream, 0,",
           "core"),
    Mutant("batches drawn are not counted", "core/local_model.py", "before.batches + drawn", "before.batches", "core"),
    Mutant("optimizer state is not restored", "core/optimizer.py",
           'stripped(state, f"{i}/") if state else self._fresh[i]', "self._fresh[i]", "core"),
    Mutant("optimizer state is never kept", "core/local_model.py",
           'self.optimizer.state() if self.training.optimizer_state == "keep" else {}', "{}", "core"),
    Mutant("the schedule's rate is ignored", "core/optimizer.py", 'group["lr"] = rate * lr_factor',
           'group["lr"] = rate', "core"),
    Mutant("counts in an optimizer's groups continue", "core/optimizer.py", "            group.clear()",
           "            ...", "hostile/test_optimizers.py"),
    Mutant("a worker's error loses its key", "federation/engines/pool.py", "answer.kind(answer.reason, key=answer.key)",
           "answer.kind(answer.reason)", "federation/engines/test_failing_clients.py"),
    Mutant("custom optimizers are not tried", "federation/assembly.py", "if is_foreign(optimizer.configured):",
           "if False:", "hostile/test_optimizers.py"),
    Mutant("a scheduler is not followed", "federation/scheduler.py", "lr_factor=factor", "lr_factor=1.0",
           "hostile/test_schedulers.py"),
    Mutant("a scheduler may change a round's rate", "federation/scheduler.py", "if len(set(seen)) > 1:", "if False:",
           "hostile/test_schedulers.py"),
    Mutant("a scheduler may change momentum", "federation/scheduler.py", "before.get(key) != now[key]", "False",
           "hostile/test_schedulers.py"),
    Mutant("the first rate of a scheduler is the base rate", "core/configured_optimizer.py",
           'group["lr"] = group.get("initial_lr", group["lr"])', "...", "hostile/test_schedulers.py"),
    Mutant("labels of a batch are not checked", "core/batches.py", "check_batch(self._client, batch, self._classes)",
           "...", "hostile/test_fetched_labels.py"),
    Mutant("bytes count what is not sent", "core/rounds.py", "payload.nbytes_sent(local.mask(client), local.layout)",
           "payload.nbytes", "federation/test_evaluation.py"),
    Mutant("hooks see the correction", "core/local_model.py", "(training.bounds or self.hooks.of_gradients)",
           "training.bounds", "hostile/test_training_hooks.py"),
    Mutant("a gradient that a hook replaced is added", "core/flat.py", "                if replaced:",
           "                if False:", "hostile/test_training_hooks.py"),
    Mutant("statistics of hooks behind the step are lost", "core/local_model.py",
           "            self.hooks.end_batch(batches[0], number)\n            self.flat.gather_statistics()",
           "            ...", "hostile/test_training_hooks.py"),
    Mutant("a rate that a hook changed is kept", "core/local_model.py", "self.optimizer.check_rates(self._lr_factor)",
           "...", "hostile/test_training_hooks.py"),
    Mutant("attributes are checked only in the first round", "federation/engines/base.py",
           "self._watch.check(", "self.local.watched or self._watch.check(", "hostile/test_modules.py"),
    Mutant("examples are not fetched twice", "federation/examinations/data.py", "if fetched(data.dataset, number) !=",
           "if False and fetched(data.dataset, number) !=", "federation/test_examinations.py"),
    Mutant("a moved run trains on", "tracking/run.py", "            self.check_in_place()\n", "",
           "hostile/test_run_directories.py"),
    Mutant("a resume takes other data", "experiment/resumption.py", "check_same(run, experiment.fingerprints)", "...",
           "experiment/test_api.py"),
    Mutant("a round is seeded without its number", "core/rounds.py", 'rnd.index, client.name)\n    window',
           'client.name)\n    window', "core"),
    Mutant("every pass has the same order", "core/batches.py", "generator(*self._purpose, epoch)",
           "generator(*self._purpose, 0)", "core"),
    Mutant("a batch of one example is kept", "core/batches.py", "(n % batch_size > 1)", "(n % batch_size > 0)", "core"),
    Mutant("what a client keeps leaves it", "core/rounds.py", "                vector[segment] = 0",
           "                vector[segment] *= 1", "core"),
    Mutant("dual variables descend", "core/local_model.py", "grad[self.layout.slices[\"dual\"]].neg_()",
           "grad[self.layout.slices[\"dual\"]].clone()", "aggregators"),
    Mutant("small gradients are scaled up", "core/local_training.py", ".clamp(max=1.0)", "", "core"),
    Mutant("a client's weight is ignored", "core/rounds.py", "vector.mul_(client.weight)", "vector", "core"),
    Mutant("a start that an aggregator sets counts as a change", "core/local_model.py",
           "self.start.copy_(self.flat.w)  # weights", "pass  # weights", "core"),
    # The server, evaluation and checkpoints.
    Mutant("evaluation in training mode", "federation/engines/base.py", "module.eval()", "module.train()",
           "federation/test_evaluation.py"),
    Mutant("statistics do not change", "federation/server.py", 'server.stats += means["stats"]', "pass", "federation"),
    Mutant("rows are divided by the weight of all clients", "federation/server.py",
           "torch.where(total.mask_weight > 0, 1.0 / total.mask_weight, 0.0)",
           "torch.full_like(total.mask_weight, 1.0 / total.weight)", "aggregators"),
    Mutant("new client states are forgotten", "federation/engines/base.py", "self._states |= self._waiting", "pass",
           "federation/engines"),
    Mutant("the same cohort in each round", "federation/participation.py", '"cohort", index)', '"cohort", 0)',
           "federation/test_session.py"),
    Mutant("the best checkpoint is removed", "core/checkpoints/checkpoint.py",
           'keep = {target, find(self.folder, "best")}', "keep = {target}", "federation/test_resume.py"),
    Mutant("an old client state is linked instead of a new one", "core/checkpoints/checkpoint.py",
           "if written_state is state and written_path.exists():", "if written_path and written_path.exists():",
           "core"),
    Mutant("a resume loses the metrics of a completed round", "tracking/run.py", "file.truncate(rounds)",
           "file.truncate(rounds - 1)", "federation/test_resume.py"),
    Mutant("metrics are sent twice", "tracking/store.py",
           "[value for value in values if value.step not in self._steps.get(value.key, ())]", "list(values)",
           "tracking"),
    # Algorithms.
    Mutant("Scaffold corrects the wrong way", "aggregators/scaffold.py", 'ctx.broadcast["c"] - ctx.state["c"]',
           'ctx.state["c"] - ctx.broadcast["c"]', "aggregators"),
    Mutant("Scaffold ignores participation", "aggregators/scaffold.py", 'rnd.participation * mean["c"]', 'mean["c"]',
           "aggregators"),
    Mutant("Scaffold ignores eta_g", "aggregators/scaffold.py", "server.delta *= self.eta_g", "pass", "aggregators"),
    Mutant("FedProx pulls twice as much", "aggregators/fedprox.py", "pull(ctx.w, self.mu)", "pull(ctx.w, 2 * self.mu)",
           "aggregators"),
    # The canon.
    Mutant("a row without owner moves with the server's optimizer", "aggregators/server_optimizer.py",
           "torch.where(rnd.participation > 0, new, old)", "new", "aggregators/test_server_optimizer.py"),
    Mutant("the server's optimizer forgets its state", "aggregators/server_optimizer.py", 'if state["rounds"]:',
           "if False:", "aggregators/test_server_optimizer.py"),
    Mutant("the server's weight decay acts on zero", "aggregators/server_optimizer.py",
           "start = server.w if decays else", "start = server.w if False else",
           "aggregators/test_server_optimizer.py"),
    Mutant("rows without owner count as present", "federation/session.py", "present / self._owners, 0.0)",
           "present / self._owners, 1.0)", "aggregators/test_server_optimizer.py"),
    Mutant("FedYogi is FedAdam", "aggregators/adaptive.py",
           "return v - (1 - self.beta_2) * squares * (v - squares).sign()", "return super().second(v, squares)",
           "aggregators/test_server_optimizer.py"),
    Mutant("FedNova ignores the pull", "aggregators/fednova.py", "pull * ctx.rates[0])", "0.0)",
           "aggregators/test_fednova.py"),
    Mutant("FedNova ignores its momentum", "aggregators/fednova.py", "velocity = momentum * velocity",
           "velocity = 0 * velocity", "aggregators/test_fednova.py"),
    Mutant("FedDyn's h counts the cohort only", "aggregators/feddyn.py", "self.alpha * rnd.participation * change",
           "self.alpha * change", "aggregators/test_feddyn.py"),
    Mutant("FedDyn never corrects", "aggregators/feddyn.py", 'ctx.correction.bias -= ctx.state["h"]', "pass",
           "aggregators/test_feddyn.py"),
    Mutant("a client has the counts of another", "core/measuring.py",
           "objective.settle_client(labels.to(local.flat.w.device))", "...", "objectives/test_label_skew.py"),
    Mutant("FedLC keeps absent classes in the sum", "objectives/label_skew.py",
           "logits - self.tau * margins, positives > 0", "logits - self.tau * margins, positives >= 0",
           "objectives/test_label_skew.py"),
    Mutant("FedRS restricts in validation too", "objectives/label_skew.py", "if self.training:", "if True:",
           "objectives/test_label_skew.py"),
    Mutant("MOON draws to the last model", "aggregators/moon.py", "similar[1] - similar[0]", "similar[0] - similar[1]",
           "aggregators/test_moon.py"),
    Mutant("MOON's extra passes change statistics", "aggregators/moon.py",
           "torch.no_grad(), _evaluating(ctx.model.module), ", "torch.no_grad(), ", "aggregators/test_moon.py"),
    Mutant("a model elsewhere has the client's statistics", "core/flat.py", "buffers[leaf] = others[name]", "pass",
           "aggregators/test_moon.py"),
    Mutant("Ditto is pulled to nothing", "aggregators/ditto.py", "v[: dual.start] - ctx.start[: dual.start]",
           "v[: dual.start]", "aggregators/test_ditto.py"),
    Mutant("evaluations miss the personal model", "core/local_model.py",
           "hooks.personalise(self.aggregators, state, self.flat.w, self.flat.stats)", "...",
           "aggregators/test_ditto.py"),
    Mutant("FedRep moves what stands still", "aggregators/personal.py",
           'ctx.w[self._still(ctx, steps=1)] = ctx.scratch["still"]', "...", "aggregators/test_personal.py"),
    Mutant("FedRep trains both parts at once", "aggregators/personal.py", "ctx.grad[still] = 0", "...",
           "aggregators/test_personal.py"),
    Mutant("unknown sites in a participation plan", "federation/assembly.py",
           "settings.cohorts.check([*clients], settings.rounds)", "...", "federation/test_participation.py"),
    Mutant("fewer clients are available than the least", "federation/participation.py",
           "max(1.0, sorted(ratios)[self.least - 1])", "1.0", "federation/test_participation.py"),
    Mutant("CODA keeps alpha", "aggregators/coda.py", "server.w[dual] = measured.w[dual]", "pass", "aggregators"),
    Mutant("LocalSGDM forgets its momentum", "aggregators/momentum.py", ".mul_(self.momentum).add_(", ".mul_(0).add_(",
           "aggregators"),
    Mutant("LocalSGDAM starts from zero", "aggregators/momentum.py", "1.0 if start else beta", "beta", "aggregators"),
    Mutant("a late client of LocalSGDAM starts with its own estimates", "aggregators/momentum.py",
           "            ctx.scratch |= averaged", "            pass", "aggregators/test_momentum.py"),
    Mutant("the dual is clamped", "core/local_training.py", "for segment in network:", "for segment in (slice(None),):",
           "aggregators/test_gradient_clamp.py"),
    Mutant("LocalSCGDAM without its Hessian", "aggregators/compositional.py", "outer.sub_(curved, alpha=self.rho)",
           "outer.sub_(curved, alpha=0)", "aggregators"),
    Mutant("FedBN shares its statistics", "aggregators/batchnorm.py",
           '[*layout.groups(("norm",)), layout.stats_group]', '[*layout.groups(("norm",))]', "aggregators"),
    Mutant("surgical rows of others are sent", "aggregators/surgical.py",
           '.lacking(layout.groups(("head", "dual"), others))', '.lacking(layout.groups(("dual",), others))',
           "aggregators"),
    Mutant("unlabelled classes count as negatives", "objectives/bce.py", "torch.where(known, terms, 0.0)", "terms",
           "objectives"),
    Mutant("the AUC objective swaps p and 1-p", "objectives/auc.py", "pull = (1 - p) *", "pull = p *", "objectives"),
    Mutant("a positive weighs only a0", "objectives/ratio.py", "self.b0 * torch.where(self.p == 0",
           "0 * torch.where(self.p == 0", "objectives"),
    # Data and metrics.
    Mutant("ties count as wins", "metrics/auroc.py", "(true[1:] + true[:-1])", "(2 * true[1:])", "metrics"),
    Mutant("Holm's steps are not kept monotone", "metrics/paired.py", "np.maximum.accumulate(steps)", "steps",
           "metrics"),
    Mutant("patients of an organisation are dealt in any order", "data/partition.py", "-images[shuffled]",
           "images[shuffled]", "data"),
    Mutant("a partition may share patients unasked", "data/federated.py", "if not self.partition.shares_patients:",
           "if False:", "data/test_federated.py"),
    Mutant("an IID client gets images of others' patients", "data/partition.py",
           'records.patients if self.unit == "patient" else records.names', "records.names", "data"),
    Mutant("classes without labels count as negative", "data/xrays/base.py",
           "np.full((len(labels), len(self.classes)), np.nan, dtype",
           "np.full((len(labels), len(self.classes)), 0, dtype", "data/own/test_unlabelled.py"),
    Mutant("classes that a hospital lacks are averaged", "data/xrays/base.py", "labelled) if self.unlabelled else {}",
           "labelled) if False else {}", "data/own/test_unlabelled.py"),
    Mutant("a class that no client has learned is scored", "federation/evaluation.py",
           "scored.mask_classes([name not in learned for name in session.classes])", "pass",
           "federation/test_evaluation.py"),
    # What joining brought, margins and tables for papers.
    Mutant("the trainings that sites share have no noise", "reports/compare/joining.py",
           "shared = together.var(ddof=1) / len(together)", "shared = 0.0", "reports/test_joining.py"),
    Mutant("gains elsewhere are those at home", "reports/compare/joining.py", "here == inside", "here",
           "reports/test_joining.py"),
    Mutant("the gains of sites are not corrected", "reports/compare/joining.py",
           "changes = corrected([gains[name][i].gain for name, i in entries])",
           "changes = [corrected([gains[name][i].gain])[0] for name, i in entries]", "reports/test_joining.py"),
    Mutant("a margin may be 0", "reports/compare/margin.py", "if not 0 < margin < 1:", "if not 0 <= margin < 1:",
           "reports/test_margin.py"),
    Mutant("margin tests are not corrected", "reports/compare/margin.py", "holm([t.p_not_worse for t in tests])",
           "[t.p_not_worse for t in tests]", "reports/test_margin.py"),
    Mutant("bold is the larger mean", "reports/compare/latex.py", "change[i].claimed and change[i].value > 0",
           "change[i].value > 0", "reports/test_latex.py"),
    # Sites: models that they keep, sites that leave and join, old states.
    Mutant("numbers that no site reports are 0", "federation/evaluation.py",
           "if unreported and not any(metrics[count] for count in counts):", "if False:",
           "sites/test_small_hospitals.py"),
    Mutant("models of any number of runs are kept", "sites/models.py", ">= most:", ">= 10**9:",
           "sites/test_site_model.py"),
    Mutant("a model with NaN is kept", "sites/models.py", "and tensor.isnan().any()", "and False",
           "sites/test_site_model.py"),
    Mutant("a model may come with any vectors", "sites/site.py", 'if envelope.vectors.keys() != {"w", "stats"}:',
           "if False:", "sites/test_site_model.py"),
    Mutant("a personal model may name no client", "sites/prepared.py", "if personal or any(mask.private(layout) or",
           "if False and any(mask.private(layout) or", "sites/test_site_model.py"),
    Mutant("a model lacks the client's own part", "sites/prepared.py",
           "local.adopt_personal(self.client(task.client), self.state(task), down)",
           "local.flat.load(down.w, down.stats)", "sites/test_site_model.py"),
    Mutant("control variates of clients that left stay", "aggregators/scaffold.py",
           "        return True\n\n    def on_client", "        return False\n\n    def on_client",
           "sites/test_leaving.py"),
    Mutant("the share of positives is that of other clients", "federation/session.py",
           "if self.objective is not None and done < self.federation.rounds:", "if False:", "sites/test_leaving.py"),
    Mutant("the best model is that of other clients", "federation/federation.py", "best = Best(round=done)", "...",
           "sites/test_leaving.py"),
    Mutant("patience counts rounds with other clients", "federation/federation.py", "best = Best(round=done)",
           "best = Best()", "sites/test_leaving.py"),
    Mutant("a head is lost when clients change", "sites/site.py",
           "dropped = () if asked.before == asked.phase else", "dropped =", "sites/test_leaving.py"),
    Mutant("states of a checkpoint are removed", "sites/states.py", "{accepted, *durable} - {None}",
           "{accepted} - {None}", "sites/test_leaving.py"),
    Mutant("clients may move from site to site", "sites/roster.py", "if before.get(client, site) != site:",
           "if False:", "sites/test_leaving.py"),
    Mutant("jobs of refused leads start", "sites/hosting.py", "if name in own.refused]", "if False]",
           "sites/test_leaving.py"),
    Mutant("refused sites are not passed to NVFlare", "sites/flare.py",
           "fl_ctx.get_engine().disable_clients([name])", "...", "sites/test_flare_carrier.py"),
    Mutant("a name without a list is a list of letters", "sites/flare.py",
           'frozenset(built(list[str], settings.get("refused") or [], "refused"))',
           'frozenset(settings.get("refused") or [])', "sites/test_flare_carrier.py"),
    Mutant("states of a running run are removed", "sites/retention.py", "newest = max(", "newest = min(",
           "sites/test_site_states.py"),
    Mutant("old files that are not states are removed", "sites/retention.py", "or not belongs(entry)", "",
           "sites/test_site_states.py"),
    Mutant("a folder is removed for its name", "sites/retention.py", "if not RUN.fullmatch(entry.name):", "if True:\n"
           "        return bool(RUN.fullmatch(entry.name))\n    if False:", "sites/test_site_states.py"),
    Mutant("the store of a running job is removed", "sites/retention.py", '.startswith("FINISHED")', '.startswith("")',
           "sites/test_site_states.py"),
    # Protection of a site from a server, and of a server from its sites and leads.
    Mutant("a class is looked up by import", "core/system/typed.py", "cls = self.classes.get(name)",
           'cls = self.classes.get(name) or __import__("pydoc").locate(name)', "sites/attacks/test_code.py"),
    Mutant("a class is accepted in any place", "core/system/typed.py",
           "not issubclass(cls, kind) or self._base(cls) is not self._base(kind)", "False",
           "sites/attacks/test_code.py"),
    Mutant("an objective may be a model", "core/system/typed.py", " or self._base(cls) is not self._base(kind)", "",
           "sites/attacks/test_code.py"),
    Mutant("a model may start from a file", "sites/recipe.py", "if starts := [key for key in STARTS",
           "if starts := [key for key in ()", "sites/attacks/test_code.py"),
    Mutant("a model is not counted", "sites/recipe.py", "if count > parameters:", "if False:",
           "sites/attacks/test_code.py"),
    Mutant("a server creates what it does not accept", "sites/submitted.py",
           "if odd := lacking([wanted.model, wanted.federation, wanted.phases, wanted.callbacks], table):",
           "if odd := []:", "sites/attacks/test_code.py"),
    Mutant("a lead may name any file", "sites/submitted.py", "if asked is not None and asked not in own.weights:",
           "if False:", "sites/attacks/test_code.py"),
    Mutant("a lead may choose the folder", "sites/submitted.py", '"run_dir": own.run_dir, "logger"', '"logger"',
           "sites/attacks/test_code.py"),
    Mutant("JSON may have a key twice", "sites/envelope.py", "if len(read) < len(pairs):", "if False:",
           "sites/attacks/test_resources.py"),
    Mutant("JSON without depth", "sites/envelope.py", "if depth > DEEPEST:", "if False:",
           "sites/attacks/test_resources.py"),
    Mutant("batches of any size", "sites/policy.py", "if batch_size < min(self.floors.batch_size, size):", "if False:",
           "sites/attacks/test_floors.py"),
    Mutant("rounds of any length", "sites/policy.py", "examples < (least := min(self.floors.examples, size))",
           "examples < (least := 0)", "sites/attacks/test_floors.py"),
    Mutant("steps without end", "sites/policy.py", "if steps > self.limits.steps:", "if False:",
           "sites/attacks/test_floors.py"),
    Mutant("rounds are not counted", "sites/policy.py", "answered >= self.rounds:", "False:",
           "sites/attacks/test_floors.py"),
    Mutant("measuring does not count", "sites/ledger.py", 'self.verb in ("train", "measure")', 'self.verb == "train"',
           "sites/attacks/test_floors.py"),
    Mutant("parts of a view are scored", "sites/policy.py", "        if look.limit is not None:", "        if False:",
           "sites/attacks/test_floors.py"),
    Mutant("two questions about one view", "sites/policy.py", "if entry.question == question:", "if True:",
           "sites/attacks/test_floors.py"),
    Mutant("evaluations are not counted", "sites/policy.py", "if asked >= most:", "if False:",
           "sites/attacks/test_floors.py"),
    Mutant("the loss of a view with a hidden class leaves", "sites/site.py",
           "logged = {} if not scores and self._data.hidden(look.holder, look.part) else scored.logged",
           "logged = scored.logged", "sites/attacks/test_floors.py"),
    Mutant("a count leaves without its complement", "sites/policy.py", "None if gone else int(n)",
           "None if n < self.leaves.counts_below else int(n)", "sites/attacks/test_floors.py"),
    Mutant("a small group of images leaves", "sites/policy.py", "size[name] < limit,", "False,",
           "sites/attacks/test_small_groups.py"),
    Mutant("a small group of images is what the others leave", "sites/policy.py", "if is_small or stands_out:",
           "if is_small:", "sites/attacks/test_small_groups.py"),
    Mutant("a group counts images and not patients", "sites/policy.py", "len(np.unique(patients[mask]))",
           "int(mask.sum())", "sites/attacks/test_small_groups.py"),
    Mutant("groups leave without scores", "sites/own_data.py", "if data is None or not self.policy.leaves.scores:",
           "if data is None:", "sites/attacks/test_small_groups.py"),
    Mutant("a measuring round reveals hidden shares", "sites/prepared.py",
           "hidden = tuple(data.stand_ins(member.name).items())", "hidden = ()", "sites/attacks/test_floors.py"),
    Mutant("any first weights are trained", "sites/prepared.py", "if entry.name not in variables and not torch.equal(",
           "if False and not torch.equal(", "sites/attacks/test_floors.py"),
    Mutant("errors name files", "sites/failures.py", "if not with_text and", "if False and",
           "sites/attacks/test_floors.py"),
    Mutant("a run may have any id", "sites/messages.py", "if not RUN.fullmatch(run):", "if False:",
           "sites/attacks/test_resources.py"),
    Mutant("messages of any size", "sites/policy.py", "if nbytes > self.limits.megabytes * 10**6:", "if False:",
           "sites/attacks/test_resources.py"),
    Mutant("messages are not counted", "sites/policy.py", ">= self.limits.messages:", ">= 10**9:",
           "sites/attacks/test_resources.py"),
    Mutant("answers take any time", "sites/serving.py", "signal.setitimer(signal.ITIMER_REAL, seconds)", "pass",
           "sites/attacks/test_resources.py"),
    Mutant("memory without end", "sites/serving.py", "resource.setrlimit(resource.RLIMIT_DATA,", "print(",
           "sites/attacks/test_resources.py"),
    Mutant("two processes answer for one folder", "sites/serving.py", "self._lock.acquire(timeout=OTHER)", "pass",
           "sites/attacks/test_resources.py"),
    Mutant("files are readable for all users", "sites/serving.py", "os.umask(0o077)", "os.umask(0o022)",
           "sites/attacks/test_resources.py"),
    Mutant("a ledger may be changed", "sites/ledger.py", "if head != _next(before, held):", "if False:",
           "sites/attacks/test_resources.py"),
    Mutant("an older ledger is not reported", "sites/roster.py", "if known and presence.ledger != known:", "if False:",
           "sites/attacks/test_lying_sites.py"),
    Mutant("a site may send its own mask weight", "sites/answers.py",
           "or not same_mask:", "or mask_weight is None:",
           "sites/attacks/test_lying_sites.py"),
    Mutant("lengths are not checked", "sites/answers.py", "if vector.numel() != known.get(name, vector.numel()):",
           "if False:", "sites/attacks/test_lying_sites.py"),
    Mutant("rows that a client lacks are accepted", "sites/answers.py",
           "if any(vector[stretch].any() for stretch in self.mask.unshared(layout)):", "if False:",
           "sites/attacks/test_lying_sites.py"),
    Mutant("vectors that were not requested are accepted", "sites/answers.py", "if name not in known and not added:",
           "if False:", "sites/attacks/test_lying_sites.py"),
    Mutant("the first answer is believed", "sites/answers.py",
           "most = counted[0][0] if counted[0][1] > counted[1][1] else None", "most = next(iter(forms.values()))",
           "sites/attacks/test_lying_sites.py"),
    Mutant("updates of any norm", "sites/answers.py", "if usual is not None and norm > FAR * usual:", "if False:",
           "sites/attacks/test_lying_sites.py"),
    Mutant("a site may report any AUROC", "sites/answers.py",
           "if ((auroc - binned.auroc).abs() > within + 1e-9).any() or", "if False or",
           "sites/attacks/test_lying_sites.py"),
    Mutant("counts other than the reported ones are accepted", "sites/answers.py",
           "if any(count is not None and count != number", "if any(False", "sites/attacks/test_lying_sites.py"),
    Mutant("text of a site is not escaped", "sites/messages.py",
           'c if c.isprintable() else c.encode("unicode_escape").decode()', "c", "sites/attacks/test_lying_sites.py"),
    Mutant("changed data are not reported", "sites/replies.py", "if data != info.data:", "if False:",
           "sites/attacks/test_lying_sites.py"),
    # Evaluations.
    Mutant("a threshold is chosen on test images", "reports/evaluation/points.py", 'if part != "val":', "if False:",
           "reports/test_evaluate.py"),
    Mutant("thresholds come from another model", "reports/evaluation/evaluation.py",
           "if validation.round != sets[0].round:", "if False:", "reports/test_evaluate.py"),
    Mutant("runs have other labels", "reports/evaluation/images.py", "if not np.array_equal(theirs[column][rows]",
           "if False and not np.array_equal(theirs[column][rows]", "reports/test_evaluate.py"),
    Mutant("runs have other images", "reports/evaluation/images.py",
           "if len(key) != len(keys[0]) or (rows < 0).any():", "if False:", "reports/test_evaluate.py"),
    Mutant("few patients have an interval", "metrics/measures.py", "or support.fewest < SUPPORT or", "or",
           "metrics/test_measures.py"),
    Mutant("few patients have a claim", "metrics/measures.py",
           "if min(each.support.fewest for each in both) < SUPPORT or", "if", "metrics/test_measures.py"),
    Mutant("gaps ignore other trainings", "metrics/measures.py", "p = max(p_seeds,", "p = min(p_images,",
           "metrics/test_measures.py"),
    Mutant("a half-defined measure has an error", "metrics/measures.py", "defined.mean() < 1 - UNDEFINED or ", "",
           "metrics/test_measures.py"),
)  # fmt: skip


def main() -> None:
    """Run mutants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="select mutants whose description contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of parallel mutants")
    args = parser.parse_args()
    selected = [m for m in MUTANTS if not args.words or any(word in m.what for word in args.words)]
    began = time.monotonic()
    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        verdicts = pool.map(lambda job: verdict(job[1], Path(folder, str(job[0]))), enumerate(selected))
        alive = 0
        for mutant, killer in zip(selected, verdicts, strict=True):
            alive += not killer
            print(f"{mutant.what:52} {mutant.file:30} {killer or f'ALIVE after tests/{mutant.tests}'}", flush=True)
    print(f"{len(selected)} mutants, {alive} alive, {time.monotonic() - began:.0f} s")
    sys.exit(bool(alive))


def verdict(mutant: Mutant, folder: Path) -> str:
    """Break a copy of the code and return the first test that fails, or ""."""
    for part in ("fedlit", "tests", "configs"):
        shutil.copytree(ROOT / part, folder / "main" / part, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, folder / "main")
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    broken(mutant, folder / "main")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--no-header", f"tests/{mutant.tests}"]
    env = {**os.environ, "PYTHONPATH": str(folder / "main"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=folder / "main", env=env, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"(still running after {LIMIT} s)"
    finally:
        shutil.rmtree(folder)
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode != 1 or not failed:
        raise RuntimeError(f"{mutant.what}: pytest itself failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[0].split(" - ")[0].removeprefix("FAILED ")


def broken(mutant: Mutant, root: Path) -> None:
    """Break the code below a folder.

    Raises:
        ValueError: The text does not occur exactly once.
    """
    file = root / "fedlit" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.what}: expected {mutant.old!r} once in {mutant.file}, found it {text.count(mutant.old)} times"
        )
    file.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    main()
