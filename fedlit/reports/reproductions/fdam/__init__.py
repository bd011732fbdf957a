"""FDAM: Yuan et al., "Federated Deep AUC Maximization", ICML 2021."""
