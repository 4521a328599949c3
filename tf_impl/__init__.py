"""The workloads and strategies in TensorFlow, with Keras layers and update rules of our own."""
