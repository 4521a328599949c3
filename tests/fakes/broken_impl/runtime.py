raise ImportError("libbroken.so.1: cannot open shared object file")
