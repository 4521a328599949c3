"""The devices of this machine and the environment of its processes. Parent process."""
