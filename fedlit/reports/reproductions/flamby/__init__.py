"""FLamby: Ogier du Terrail et al., "FLamby", NeurIPS 2022 Datasets and Benchmarks."""
