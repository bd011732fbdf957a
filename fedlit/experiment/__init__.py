"""From a configuration to objects, and to one run or many."""
