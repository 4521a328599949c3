"""The workloads and strategies in PyTorch."""
