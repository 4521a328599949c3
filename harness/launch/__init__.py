"""Starts the processes of a trial, supervises them, and ends all of them.

Parent process. The supervisor is a process of its own.
"""
