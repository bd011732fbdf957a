"""The AUC saddle objective against its formulas."""

import pytest
import torch
from fdam_oracle import margin_form, pairwise, paper_form

from fedlit.objectives import AUCSaddle

NAN = float("nan")


def built(classes: int = 1, p=0.3, a=0.7, b=0.2, alpha=0.4, **options) -> AUCSaddle:
    objective = AUCSaddle(prior=None, **options).double()
    objective.build(classes)
    objective.double()
    with torch.no_grad():
        for name, value in (("p", p), ("a", a), ("b", b), ("alpha", alpha)):
            getattr(objective, name).copy_(torch.as_tensor(value, dtype=torch.float64))
    return objective


def gradients(objective, logits, labels):
    """Return the loss, and its gradients by logits, a, b, alpha."""
    logits = logits.clone().requires_grad_()
    loss = objective(logits, labels)
    found = torch.autograd.grad(loss, [logits, objective.a, objective.b, objective.alpha])
    return loss.detach(), *found


def draws(seed: int, n: int = 12, classes: int = 1, share: float = 0.4):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (torch.rand(n, classes, generator=g) < share).double()


@pytest.mark.parametrize("score", ["sigmoid", "raw"])
@pytest.mark.parametrize("margin", [1.0, 0.6])
def test_margin_form_is_the_formula(score, margin):
    logits, labels = draws(0)
    h = logits.sigmoid() if score == "sigmoid" else logits
    value = built(score=score, margin=margin)(logits, labels)
    numbers = [torch.tensor(v, dtype=torch.float64) for v in (0.7, 0.2, 0.4, 0.3)]
    torch.testing.assert_close(value, margin_form(h, labels, *numbers, margin).mean())


def test_paper_form_is_eq_2():
    logits, labels = draws(1)
    numbers = [torch.tensor(v, dtype=torch.float64) for v in (0.7, 0.2, -0.4, 0.3)]
    value = built(form="paper", alpha=-0.4)(logits, labels)
    torch.testing.assert_close(value, paper_form(logits.sigmoid(), labels, *numbers).mean())


def test_the_forms_differ_by_one_in_alpha_and_a_constant():
    logits, labels = draws(2)
    margin = gradients(built(alpha=1.35), logits, labels)
    paper = gradients(built(alpha=0.35, form="paper"), logits, labels)
    torch.testing.assert_close(margin[0] - paper[0], torch.tensor(0.3 * 0.7, dtype=torch.float64))
    for one, other in zip(margin[1:], paper[1:], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("labels", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, NAN, 0.0]])
def test_gradient_by_hand(labels):
    """Batches without positives, without negatives, with both, and with an unknown label."""
    p, a, b, alpha = 0.3, 0.7, 0.2, 0.4
    scores = [0.9, -0.5, 0.3]
    known = [(h, y) for h, y in zip(scores, labels, strict=True) if y == y]
    n = len(known)
    of_h = [0.0 if y != y else _by_h(h, y, p, a, b, alpha) / n for h, y in zip(scores, labels, strict=True)]
    of_a = sum(-2 * (1 - p) * (h - a) for h, y in known if y == 1) / n
    of_b = sum(-2 * p * (h - b) for h, y in known if y == 0) / n
    of_alpha = 2 * p * (1 - p) * (1 - alpha)
    of_alpha += sum(2 * p * h if y == 0 else -2 * (1 - p) * h for h, y in known) / n
    column = torch.tensor(scores, dtype=torch.float64)[:, None]
    found = gradients(built(score="raw"), column, torch.tensor(labels, dtype=torch.float64)[:, None])
    for tensor, value in zip(found[1:], (of_h, [of_a], [of_b], [of_alpha]), strict=True):
        torch.testing.assert_close(tensor.flatten(), torch.tensor(value, dtype=torch.float64))


def _by_h(h, y, p, a, b, alpha):
    return 2 * (1 - p) * (h - a) - 2 * alpha * (1 - p) if y == 1 else 2 * p * (h - b) + 2 * alpha * p


def test_several_classes_are_their_mean_and_an_unlabelled_one_is_left_out():
    logits, labels = draws(4, classes=3)
    labels[:, 1] = NAN
    values = {"p": [0.3, 0.5, 0.1], "a": [0.7, 0.6, 0.5], "b": [0.2, 0.1, 0.3], "alpha": [0.4, 0.9, 0.6]}
    together = gradients(built(3, **values), logits, labels)
    alone = [
        gradients(built(1, **{n: v[c] for n, v in values.items()}), logits[:, c : c + 1], labels[:, c : c + 1])
        for c in (0, 2)
    ]
    torch.testing.assert_close(together[0], (alone[0][0] + alone[1][0]) / 2)
    for position in (1, 2, 3, 4):
        dim = 1 if position == 1 else 0
        columns = [alone[0][position] / 2, torch.zeros_like(alone[0][position]), alone[1][position] / 2]
        torch.testing.assert_close(together[position], torch.cat(columns, dim))


@pytest.mark.parametrize("size", [1e4, float("inf")])
def test_saturated_logits_have_a_finite_gradient(size):
    logits = torch.tensor([[size], [-size], [size], [-size]], dtype=torch.float64)
    labels = torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64)
    found = gradients(built(), logits, labels)
    assert all(t.isfinite().all() for t in found)
    assert not found[1].any()
    assert found[2].any()
    found = gradients(built(), logits.float(), labels.float())
    assert all(t.isfinite().all() for t in found)


def test_dual_scale_multiplies_the_gradient_of_alpha_alone():
    logits, labels = draws(5)
    plain, scaled = (gradients(built(dual_scale=s), logits, labels) for s in (1.0, 1 / (0.3 * 0.7)))
    torch.testing.assert_close(scaled[4], plain[4] / 0.21)
    for one, other in zip(scaled[:4], plain[:4], strict=True):
        torch.testing.assert_close(one, other)


def test_clamp_keeps_alpha_at_or_above_zero():
    clamped, free = built(clamp=True, alpha=-0.5), built(alpha=-0.5)
    clamped.project()
    free.project()
    assert clamped.alpha.item() == 0
    assert free.alpha.item() == -0.5
    means = _means(a=0.9, b=-0.4)
    assert clamped.optimum(means)[2].item() == 0
    torch.testing.assert_close(free.optimum(means)[2], torch.tensor([1 - 0.4 - 0.9], dtype=torch.float64))


def _means(a: float, b: float, labels: float = 1.0, positives: float = 0.25):
    """Return the clients' reports of scores with these class means."""
    values = {
        "labels": labels,
        "positives": positives,
        "h_positive": a * positives,
        "h_negative": b * (labels - positives),
        "n_positive": positives,
        "n_negative": labels - positives,
    }
    return {n: torch.tensor([v], dtype=torch.float64) for n, v in values.items()}


@pytest.mark.parametrize(("form", "alpha"), [("margin", 0.4), ("paper", -0.6)])
def test_settle_takes_p_and_the_optimum(form, alpha):
    objective = built(form=form)
    objective.settle(_means(a=0.8, b=0.2, labels=0.5, positives=0.2))
    torch.testing.assert_close(objective.p.item(), 0.4)
    for name, value in (("a", 0.8), ("b", 0.2), ("alpha", alpha)):
        torch.testing.assert_close(getattr(objective, name).item(), value)


def test_settle_leaves_what_is_given_or_unknown():
    given = AUCSaddle(prior=0.1)
    given.build(1)
    given.settle(_means(a=0.8, b=0.2))
    assert given.p.item() == pytest.approx(0.1)
    zeros = built(start="zeros", a=0.0, b=0.0, alpha=0.0)
    zeros.settle(_means(a=0.8, b=0.2))
    assert [v.item() for v in (zeros.p, zeros.a, zeros.b, zeros.alpha)] == [0.25, 0.0, 0.0, 0.0]
    lonely = built()
    lonely.settle(_means(a=0.8, b=0.2, positives=0.0))
    assert [v.item() for v in (lonely.p, lonely.a, lonely.b, lonely.alpha)] == [0.0, 0.7, 0.2, 0.4]


def test_the_mean_gap_is_that_of_clients_with_both_sides():
    """Of three clients, one lacks negatives of the first class, and one has no label of the second."""
    labels = torch.tensor(
        [[[1, 0], [0, 1], [0, 1]], [[1, 1], [1, 0], [NAN, 0]], [[0, NAN], [1, NAN], [0, NAN]]], dtype=torch.float64
    )
    logits = draws(9, n=9, classes=2)[0].view(3, 3, 2)
    objective = built(2, dual_means="clients", score="raw")
    reports = [objective.measure(h, y, y) for h, y in zip(logits, labels, strict=True)]
    objective.settle({name: sum(report[name] for report in reports) / 3 for name in reports[0]})
    for column, clients in enumerate([(0, 2), (0, 1)]):
        gaps = []
        for client in clients:
            h, y = logits[client, :, column], labels[client, :, column]
            gaps.append(h[y == 0].mean() - h[y == 1].mean())
        torch.testing.assert_close(objective.alpha[column].item(), 1 + sum(gaps).item() / 2)


@pytest.mark.parametrize("form", ["margin", "paper"])
@pytest.mark.parametrize("score", ["sigmoid", "raw"])
def test_optimum_is_where_the_gradient_vanishes(score, form):
    logits, labels = draws(6, n=30, classes=2)
    objective = built(2, score=score, form=form)
    objective.settle(objective.measure(logits, labels, labels))
    for gradient in gradients(objective, logits, labels)[2:]:
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", ["margin", "paper"])
@pytest.mark.parametrize("score", ["sigmoid", "raw"])
def test_pooled_is_the_pairwise_surrogate_of_all_scores(score, form):
    logits, labels = draws(7, n=20, classes=2)
    labels[:5, 1] = NAN
    objective = built(2, p=[0.3, 0.6], score=score, form=form)
    h = logits.sigmoid() if score == "sigmoid" else logits
    expected = [p * (1 - p) * float(pairwise(h[:, c], labels[:, c])) for c, p in enumerate((0.3, 0.6))]
    found = objective.pooled(logits, labels)["auc_loss"]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_pooled_of_a_class_without_positives_is_nan():
    logits, labels = draws(8, classes=2)
    labels[:, 0] = 0
    found = built(2).pooled(logits, labels)["auc_loss"]
    assert found.isnan().tolist() == [True, False]
