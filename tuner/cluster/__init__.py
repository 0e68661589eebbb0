"""GPUs of a Ray cluster as devices of a sweep; only this package imports Ray, and only for `--ray`."""
