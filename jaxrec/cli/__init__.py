"""The `jaxrec` command: arguments become calls of `data`, `train` and `io`."""
