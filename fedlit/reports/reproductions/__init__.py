"""Reproductions: a figure or table from runs that anybody can start, with ``fedlit reproduce NAME``.

Each is a YAML document in the folder of its paper, ``configs/PAPER/NAME.yaml``.
"""

NAMES = (
    *("fdam-fig1", "fdam-fig2", "fdam-fig3", "fdam-fig4"),
    *("fdam-table2", "fdam-table3", "fdam-table4", "fdam-table5", "fdam-table6"),
    *("localscgdam-table1", "localscgdam-fig1", "localscgdam-fig2", "localscgdam-fig3"),
    *("localscgdam-fig4", "localscgdam-fig5", "localscgdam-pretrained"),
    *("localscgdam-search", "localscgdam-search-narrow", "localscgdam-search-sampled"),
    *("surgical-tables", "surgical-table1", "surgical-table2", "surgical-table3", "surgical-table4"),
    *("surgical-fig4a", "surgical-fig4b", "surgical-fig5", "surgical-fig6", "surgical-fig7"),
    *("surgical-sites", "surgical-warmup"),
    *("flamby-heart", "flamby-isic2019"),
    *("canon", "canon-heads", "privacy"),
)
"""Names of what can be reproduced, those of one paper together."""
