"""What forward leaves for backward: closed forms by family, coefficients of a trace, or a running job's measurement."""
