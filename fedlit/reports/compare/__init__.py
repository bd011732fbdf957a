"""What ``fedlit compare`` computes, draws and writes."""
