// Included by C code of dependencies, which calls nothing of it.
