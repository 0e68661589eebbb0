"""The plan of a sweep: grids, configs, order, resume, expected time."""
