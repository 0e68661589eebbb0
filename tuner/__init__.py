"""Planning, compiling, gate and timing: everything between a problem and its stored measurements."""
