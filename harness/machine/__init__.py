"""The devices of this machine, and the environment of the processes on it. Parent process."""
