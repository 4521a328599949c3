"""The workloads and strategies in TensorFlow, with Keras layers and our own update rules."""
