"""LocalSCGDAM: Zhang et al., "Federated Compositional Deep AUC Maximization", NeurIPS 2023."""
