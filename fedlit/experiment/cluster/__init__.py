"""Many runs on SLURM: one array of jobs for a sweep, a tuning, several seeds or a reproduction."""
