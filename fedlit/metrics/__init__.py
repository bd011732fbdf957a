"""Metrics of classifiers: AUROC of each class, its confidence intervals, and paired comparisons of two methods."""
