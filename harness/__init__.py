"""likeforlike: which framework and which parallel strategy trains fastest, and is it really the same training?"""

__version__ = "0.1.0"
