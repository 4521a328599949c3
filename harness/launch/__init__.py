"""Starting the processes of a trial, watching over them, and ending all of them.

Parent process; the supervisor is one of its own.
"""
