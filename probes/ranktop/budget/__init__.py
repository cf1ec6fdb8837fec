"""The expected side: what a strategy should hold on each rank. Standard library only."""
